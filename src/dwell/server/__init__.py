"""The server: one queue over the network, by HTTP and by the beanstalk protocol."""
