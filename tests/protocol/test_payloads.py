"""Large values of payloads go to the blob store and come back; small ones keep a fixed order."""

from planaria.protocol.blobs import blob_ref
from planaria.protocol.payloads import Ref, load_value, read_field, split_payload, write_field


def test_value_over_the_limit_becomes_a_blob_and_comes_back():
    value = {"text": "x" * 300_000}

    payload, blobs = split_payload({"callId": "c", "result": value})

    assert payload.keys() == {"callId", "resultRef"}
    found = read_field(payload, "result")
    stored = {blob_ref(data)["sha256"]: data for data in blobs}
    assert isinstance(found, Ref)
    assert value == load_value(found, lambda ref: stored[ref["sha256"]])
    assert {"outputRef": found.fields} == write_field("output", found)


def test_value_that_stays_has_the_key_order_that_a_fold_of_the_log_gives():
    payload, blobs = split_payload({"stepId": "s", "output": [{"b": 1, "a": {"d": 2, "c": 3}}]})

    assert [] == blobs
    assert ["output", "stepId"] == list(payload)
    assert ["a", "b"] == list(payload["output"][0])
    assert ["c", "d"] == list(payload["output"][0]["a"])


def test_fields_that_never_become_blobs_are_put_in_order_too():
    payload, _ = split_payload({"manifest": {"b": {"d": 1, "c": 2}, "a": 1}})

    assert ["a", "b"] == list(payload["manifest"])
    assert ["c", "d"] == list(payload["manifest"]["b"])


def test_sensitive_values_never_stay():
    payload, blobs = split_payload({"args": 1, "toolName": "t"}, inline_bytes_max=-1)

    assert payload.keys() == {"argsRef", "toolName"}
    assert 1 == len(blobs)
