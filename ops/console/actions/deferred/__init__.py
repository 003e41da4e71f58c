"""Actions on deferred messages: recall, commit or roll back, send again."""
