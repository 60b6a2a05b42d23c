"""The schemas: what requests and answers hold, in JSON and MessagePack."""
