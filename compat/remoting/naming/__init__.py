"""RocketMQ's name servers, which this node registers at as a broker."""
