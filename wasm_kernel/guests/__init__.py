"""Guest languages: the contract, the agent's protocol, and one folder a language."""
