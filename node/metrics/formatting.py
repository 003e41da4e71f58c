"""Values of labels."""


def truth(value: bool) -> str:
    """A boolean as RocketMQ writes it."""
    return "true" if value else "false"


def is_system_group(name: str) -> bool:
    """Whether RocketMQ keeps a group of this name for itself."""
    return name.startswith("CID_RMQ_SYS_")
