"""duolog's own gRPC API: messages, groups, administration. It may call whatever the broker has."""
