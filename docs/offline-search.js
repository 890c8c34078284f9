// Browsers start no worker for a page that was opened from disk. There the search runs in a hidden
// frame, which gets and sends the same messages.
class FrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.onmessage = this.onerror = null
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    this.frame.srcdoc = `<script>
      window.postMessage = data => parent.postMessage(data, "*")
    </script><script src="${new URL(url, location.href)}"></script>`
    this.loaded = new Promise(done => { this.frame.onload = done })
    addEventListener("message", event => {
      if (event.source !== this.frame.contentWindow) return
      const message = new MessageEvent("message", { data: event.data })
      this.dispatchEvent(message)
      if (this.onmessage) this.onmessage(message)
    })
    document.body.appendChild(this.frame)
    const target = this.frame.contentWindow
    this.send = data => target.dispatchEvent(new MessageEvent("message", { data }))
  }
  postMessage(data) { this.loaded.then(() => this.send(data)) }
  terminate() { this.frame.remove() }
}
if (location.protocol === "file:") window.Worker = FrameWorker
