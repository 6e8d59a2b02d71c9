import rfc8785

from planaria.protocol.codec import hash_bytes
from planaria.protocol.manifests import describe_step, hash_manifest, make_manifest


def test_manifest_hash_is_over_its_rfc_8785_form():
    step = {"id": 'ä\n\x1f😀\u2028"\\/', "uses": "ai.generate", "with": {"model": "fast"}}
    described = describe_step(step, {"tools": {}})
    manifest = make_manifest(
        "worker",
        described,
        definition_hash="sha256:0",
        version_id="wv_1",
        step_path="é😀.visit[0]\x7f\t\b",
    )

    assert hash_bytes(rfc8785.dumps(manifest)) == hash_manifest(manifest)


def test_order_of_tools_is_no_drift():
    lock = {"tools": {"a": {"effect": "read"}, "b": {"effect": "once"}}}
    one = describe_step({"uses": "ai.generate", "with": {"tools": ["a", "b"]}}, lock)
    other = describe_step({"uses": "ai.generate", "with": {"tools": ["b", "a"]}}, lock)

    assert one["allowedToolsHash"] == other["allowedToolsHash"]
