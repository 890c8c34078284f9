"""Token traces: made from text, and described.

A token trace holds what was really said, as token ids; drafts from text are worked out on it
(`specsim.tokens.draft_eval`, acceptance ``token_match``). The libraries that turn text into tokens
are an extra of the package, so only two modules import them, and `specsim.tokens.tokenizer` imports
those two when a file asks for it.
"""
