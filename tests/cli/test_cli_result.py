def done(cli, **acks):
    with cli.queue() as queue:
        queue.put_many("t", ["x"] * len(acks), ids=list(acks))
        for message in queue.take("t", len(acks)):
            queue.ack(message, result=acks[message.id])


def test_result_is_printed(cli):
    done(cli, a={"sum": 6}, b=b"\xff", c=None)
    assert cli.out("result", "t", "a") == ["done  a", '{"sum":6}']
    assert cli.out("result", "t", "c") == ["done  c"]
    assert cli.json("result", "t", "a") == [
        {"topic": "t", "id": "a", "state": "done", "result": '{"sum":6}'}
    ]
    assert cli.json("result", "t", "b")[0]["result_base64"] == "/w=="


def test_result_of_what_is_not_done_ends_with_one(cli):
    with cli.queue() as queue:
        queue.put_many("t", ["x", "x"], ids=["a", "b"])
        queue.bury(queue.take("t"), "because")
    (dead,) = cli.json("result", "t", "a", code=1)
    assert (dead["state"], dead["error"]) == ("dead", "because")
    assert cli.out("result", "t", "a", code=1) == ["dead  a  because"]
    assert cli.out("result", "t", "b", "--wait", "10ms", code=1) == ["ready  b"]
    assert cli.out("result", "t", "no", "--wait", "1h", code=1) == ["unknown  no"]


def test_ack_keeps_a_result(cli):
    with cli.queue() as queue:
        queue.put_many("t", ["x", "x"], ids=["a", "b"])
        receipts = [message.receipt for message in queue.take("t", 2)]
    assert cli.out("ack", *receipts, "--result", "all is well") == [f"acked  {r}" for r in receipts]
    assert cli.out("result", "t", "b") == ["done  b", "all is well"]


def test_bad_wait_is_refused(cli):
    done(cli, a=None)
    assert "wait" in cli.error("result", "t", "a", "--wait", "soon")
