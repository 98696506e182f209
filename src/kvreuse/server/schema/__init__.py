"""What requests and replies look like: checked on the way in, and told in the OpenAPI document."""
