"""Teacher and judge over an OpenAI-compatible endpoint: client, ledger, prompts."""
