"""Token traces: made from text, described, and drafted from.

A token trace holds prompts and answers as token ids, on which lookups can be replayed
(`specsim.tokens.draft_eval`, acceptance ``token_match``).
"""
