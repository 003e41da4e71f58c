"""What RocketMQ's slaves ask their master for beside the bytes of its log."""
