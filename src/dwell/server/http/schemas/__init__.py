"""The schemas: the fields of requests and answers, in JSON and MessagePack."""
