"""Token traces: made from text, described, and drafted from.

A token trace holds what was really said, as token ids; drafts from text are worked out on it
(`specsim.tokens.draft_eval`, acceptance ``token_match``).
"""
