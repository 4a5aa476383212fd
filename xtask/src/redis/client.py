"""What a program in another language does with the store, through python3-redis: HOST PORT [PASSWORD].

Any exception or failed assertion ends it with its trace and another exit code than 0.
"""

import os
import sys
import threading
import time

import redis

MIB = 1 << 20
DEADLINE_S = 30


def wait_until(condition, what):
    """Looks until it is so; time that goes by is what is waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)


def strings(client):
    assert client.get("none") is None
    assert client.set("k", "v") is True
    assert client.get("k") == b"v"
    assert client.set("k", "w", nx=True) is None
    assert client.set("k", "w", xx=True, get=True) == b"v"
    assert client.getdel("k") == b"w"
    assert client.exists("k") == 0
    assert client.append("k", "abc") == 3
    assert client.strlen("k") == 3
    assert client.getrange("k", -2, -1) == b"bc"
    assert client.setnx("k", "x") is False
    assert client.delete("k", "none") == 1


def binary_keys(client):
    names = [bytes([byte]) for byte in range(256)] + [b"\r\n", b"*1\r\n$4\r\nPING\r\n", b"\x00" * 32, b"long" * 200]
    for number, name in enumerate(names):
        assert client.set(name, name + b"=" + str(number).encode())
    values = client.mget(names)
    assert values == [name + b"=" + str(number).encode() for number, name in enumerate(names)]
    assert set(client.scan_iter(count=10)) == set(names)
    assert client.delete(*names) == len(names)
    assert client.dbsize() == 0


def numbers(client):
    assert [client.incr("n") for _ in range(3)] == [1, 2, 3]
    assert client.decr("n", 10) == -7
    assert client.incrby("n", 2**62) == 2**62 - 7
    try:
        client.incrby("n", 2**62 + 7)
        raise AssertionError("2^63 is too much")
    except redis.ResponseError as error:
        assert "would overflow" in str(error), error
    client.set("n", "text")
    try:
        client.incr("n")
        raise AssertionError("a text is no number")
    except redis.ResponseError as error:
        assert str(error) == "value is not an integer or out of range", error
    client.delete("n")


def several_keys(client):
    pairs = {f"key:{number}": f"value {number}" for number in range(1000)}
    assert client.mset(pairs) is True
    assert client.mget(list(pairs)) == [value.encode() for value in pairs.values()]
    assert client.msetnx({"key:1": "x", "fresh": "y"}) is False
    assert client.exists("fresh") == 0
    assert client.exists(*pairs) == len(pairs)
    assert client.dbsize() == len(pairs)


def scan(client):
    """Of the keys that several_keys left."""
    found = list(client.scan_iter(count=7))
    assert set(found) == {f"key:{number}".encode() for number in range(1000)}
    found = set(client.scan_iter(match="key:1?", count=100))
    assert found == {f"key:1{digit}".encode() for digit in range(10)}
    # Keys that are there all the time are found, whatever is added and removed meanwhile.
    cursor, seen = 0, set()
    for turn in range(100_000):
        cursor, names = client.scan(cursor, count=20)
        seen.update(names)
        client.set(f"passing:{turn}", "x")
        client.delete(f"passing:{turn - 3}")
        if cursor == 0:
            break
    assert cursor == 0, "SCAN does not end"
    assert {f"key:{number}".encode() for number in range(1000)} <= seen
    assert client.flushall() is True
    assert client.dbsize() == 0


def pipelines(client):
    pipe = client.pipeline(transaction=False)
    for number in range(5000):
        pipe.set(f"p:{number % 100}", number)
        pipe.get(f"p:{number % 100}")
        if number % 50 == 0:
            pipe.incrby("total", number)
    replies = iter(pipe.execute())
    total = 0
    for number in range(5000):
        assert next(replies) is True
        assert next(replies) == str(number).encode(), number
        if number % 50 == 0:
            total += number
            assert next(replies) == total
    assert next(replies, None) is None
    # An error is the answer of its own request and no other.
    pipe = client.pipeline(transaction=False)
    pipe.set("text", "x").incr("text").get("text")
    first, error, last = pipe.execute(raise_on_error=False)
    assert (first, last) == (True, b"x") and isinstance(error, redis.ResponseError), error


def transactions(client):
    """Where there are none, the library knows that nothing of one was done."""
    client.set("t:1", 1)
    pipe = client.pipeline()
    pipe.incr("t:1").set("t:2", "x")
    try:
        pipe.execute()
        wanted = [b"2", b"x"]
    except redis.ResponseError as error:
        assert "transactions are not supported" in str(error), error
        wanted = [b"1", None]
    assert client.mget("t:1", "t:2") == wanted
    # The connection is as it was.
    assert client.incr("t:3") == 1


def expiry(client):
    client.set("short", "v", px=200)
    assert 0 < client.pttl("short") <= 200
    wait_until(lambda: client.get("short") is None, "the end of a key")
    assert client.exists("short") == 0 and client.ttl("short") == -2
    client.set("long", "v", ex=100)
    assert 95 <= client.ttl("long") <= 100
    assert client.persist("long") is True and client.ttl("long") == -1
    assert client.expire("long", 0) is True and client.get("long") is None
    client.setex("kept", 100, "v")
    client.set("kept", "w", keepttl=True)
    assert client.ttl("kept") > 0
    client.set("kept", "x")
    assert client.ttl("kept") == -1


def large_values(client):
    for size in (MIB, 60 * MIB):
        value = os.urandom(1 << 16) * (size >> 16)
        assert client.set("large", value)
        assert client.strlen("large") == size
        assert client.get("large") == value
        assert client.getrange("large", size - 10, -1) == value[-10:]
    assert client.delete("large") == 1


def threads(client):
    """Each thread has a connection; increments of all are counted."""
    failures = []

    def work(number):
        try:
            for turn in range(300):
                client.incr("shared")
                client.set(f"own:{number}", turn)
                assert client.get(f"own:{number}") == str(turn).encode()
        except BaseException as error:  # noqa: BLE001 - told below, in the thread that can fail.
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures
    assert client.get("shared") == b"3000"


def server(client):
    assert client.ping() is True
    assert client.echo("hello") == b"hello"
    assert isinstance(client.info(), dict) and client.info()
    assert isinstance(client.config_get("*"), dict)
    assert client.client_id() > 0
    assert client.client_setname("me") is True and client.client_getname() == "me"
    try:
        client.execute_command("NOSUCHCOMMAND", "a")
        raise AssertionError("there is no such command")
    except redis.ResponseError as error:
        assert str(error).startswith("unknown command 'NOSUCHCOMMAND'"), error


def password(host, port, secret):
    for wrong in (None, "wrong"):
        try:
            redis.Redis(host=host, port=port, password=wrong).get("k")
            raise AssertionError(f"the password {wrong} is wrong")
        except (redis.AuthenticationError, redis.ResponseError) as error:
            assert "uthentication" in str(error) or "invalid" in str(error), error
    client = redis.Redis(host=host, port=port, username="default", password=secret)
    assert client.ping() is True


def main():
    host, port = sys.argv[1], int(sys.argv[2])
    secret = sys.argv[3] if len(sys.argv) > 3 else None
    if secret is not None:
        password(host, port, secret)
    client = redis.Redis(host=host, port=port, password=secret, socket_timeout=DEADLINE_S)
    client.flushall()
    steps = [strings, binary_keys, numbers, several_keys, scan, pipelines, transactions, expiry, threads, large_values, server]
    for step in steps:
        start = time.monotonic()
        step(client)
        print(f"python: {step.__name__:<15} {time.monotonic() - start:6.2f} s", flush=True)
    client.flushall()


main()
