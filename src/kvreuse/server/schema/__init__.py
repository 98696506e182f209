"""The types of requests and replies: they validate bodies, and make the OpenAPI document."""
