"""The reference server: continuous batching on torch and transformers behind OpenAI's API."""
