"""A server of completions: the OpenAI protocol in front, batches of the samplers behind."""
