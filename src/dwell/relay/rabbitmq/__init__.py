"""RabbitMQ as a source and as a sink, by AMQP 0.9.1."""
