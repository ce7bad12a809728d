"""test_oracle.py - the oracle against the figures of its two specifications, and the committed
goldens against the oracle. Run with: python3 -m pytest tests/test_oracle.py"""
import hashlib
import json
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import oracle  # noqa: E402
import oracle_container as oc  # noqa: E402

FAMILIES = list(oc.FAMILIES)


@pytest.fixture(scope="session")
def minis(tmp_path_factory):
    """The golden mini container in both variants: {vq4p: path}."""
    out = {}
    for vq4p in (False, True):
        out[vq4p] = tmp_path_factory.mktemp("mini") / ("vq4p" if vq4p else "vq3r")
        oc.golden_mini(out[vq4p], vq4p)
    return out


@pytest.fixture(scope="session")
def regenerated(tmp_path_factory):
    """A directory with freshly made goldens: what tests/golden should hold."""
    where = tmp_path_factory.mktemp("golden")
    subprocess.run([sys.executable, ROOT / "scripts" / "oracle.py", "goldens", "--dir", where],
                   check=True, stdout=subprocess.DEVNULL)
    return where


def close(got, want, digits=6):
    """Equal to every printed digit."""
    np.testing.assert_allclose(got, want, rtol=0, atol=0.51 * 10.0**-digits)


# The container ------------------------------------------------------------------------------


def test_the_byte_stream_starts_as_printed():
    assert bytes(oc.stream("lm_head.weight", 8).astype(np.uint8)).hex() == "b22e3e7a95f7f0dd"
    assert bytes(oc.stream("cb0", 4).astype(np.uint8)).hex() == "65312c7c"


@pytest.mark.parametrize("vq4p", [False, True])
def test_the_golden_mini_has_the_printed_digests(minis, vq4p):
    assert oracle.mini_digests(minis[vq4p], vq4p) == [(f, True) for f in oc.MINI_SHA256["vq3r"]]
    assert zlib.crc32((minis[vq4p] / "trunk.bin").read_bytes()) == 0x7953CE3A


@pytest.mark.parametrize("vq4p, crcs", [
    (False, "AD8A39AC 9E244DCA D061DABF 41C41934 251E7C81 263B9D99 FE2A7B7A 2C921F9D"),
    (True, "FF9513B0 8ED8D0B7 838406C4 2097A1D8 00219DB2 9BA40B78 C9E25A66 F323EEA4"),
])
def test_records_have_the_printed_checksums_and_offsets(minis, vq4p, crcs):
    box, got = oc.Container(minis[vq4p]), []
    for layer in (1, 2):
        for expert in range(4):
            rec, offsets, _ = box.record(layer, expert)
            assert offsets == [48, 6576, 13104, 18288] and len(rec) == 5 * 4096
            got.append(f"{int.from_bytes(rec[36:40], 'little'):08X}")
    assert got == crcs.split()


def test_the_mini_lists_57_tensors(minis):
    assert len(oc.Container(minis[False]).entries) == 57


def test_trunk_samples_decode_as_printed(minis):
    box = oc.Container(minis[False])
    close(box.tensor("lm_head.weight")[0, :4], [-0.0792961, 0.0467644, 0.0630302, 0.1240273], 7)
    close(box.tensor("model.norm.weight")[:3], [0.9003906, 1.109375, 0.9365234], 7)
    up = box.tensor("model.layers.0.mlp.up_proj.weight")
    close(up[0, :4], [0.0173035, -0.0519104, 0, 0.0173035], 7)
    down = box.tensor("model.layers.0.mlp.down_proj.weight")
    close(down[3, :3], [-2.0325e-05, 1.21951e-04, 1.42276e-04], 9)  # a subnormal scale
    close(down[3, 128:131], [0.0556183, 0.0092697, -0.0463486], 7)


def test_experts_decode_as_printed(minis):
    rows = [([0.055920839, -0.000255346, -0.059240341, 0.017363548], 3.477533407, 6.910607),
            ([0.022216797, 0.068603516, -0.053710938, -0.033447266], 3.427515266, -10.181421),
            ([0.032497406, -0.036849737, 0.032787561, -0.026113987], 3.502262635, 3.203329)]
    for w, (first, norm, total) in zip(oc.Container(minis[False]).expert(1, 0), rows):
        close(w[0, :4], first, 9)
        assert np.linalg.norm(w) == pytest.approx(norm, rel=2.0**-24)  # printed from f32
        close(w.sum(), total, 6)
    vq4p = oc.Container(minis[True]).expert(1, 0)
    close(vq4p[0][0, :3], [-0.0477498, 0.0306416, 0.0819662], 7)
    norms = [np.linalg.norm(w) for w in vq4p]
    assert norms == pytest.approx([3.9682354, 4.1010170, 4.0256815], rel=2.0**-24)


def test_packing_gives_the_printed_bytes():
    def packed(fmt, q):
        return oc.pack(fmt, np.array([q])).hex()

    q4 = packed(oc.Q4G, [-8, -7, 0, 1, 7, -1, 2, -4])
    assert q4.startswith("10987f4a") and q4.endswith("88" * 60)
    q3 = packed(oc.Q3G, range(-4, 4))
    assert q3.startswith("88c6fa") and len(q3) == 2 * 49 and q3.endswith("00")
    assert packed(oc.Q8G, [-127, -1, 0, 127]).startswith("81ff007f")
    assert oc.blocked(np.array([[[5, 17, 42, 63]]]), 6)[:3].hex() == "45a4fe"


@pytest.mark.parametrize("fmt", [oc.Q8G, oc.Q4G, oc.Q3G])
def test_quantising_then_decoding_stays_within_half_a_step(fmt):
    x = np.random.default_rng(fmt).normal(size=(5, 300)).astype(np.float32)
    x[2, 128:256] *= 1e-5  # subnormal scales
    payload, scales = oc.quantise(fmt, x)
    assert (len(payload), len(scales)) == oc.sizes(fmt, x.shape)
    step = np.repeat(np.frombuffer(scales, "<f2").astype(float).reshape(5, 3), 128, axis=1)[:, :300]
    # the scale is rounded after the codes are chosen: 2^-11, or the subnormal grid's half step
    slack = oc.LIMIT[fmt][0] * (step * 2.0**-11 + 2.0**-25)
    assert (np.abs(oc.unpack(fmt, payload, scales, x.shape, "x") - x) <= step / 2 + slack).all()


@pytest.mark.parametrize("bits, stages", [(8, 3), (8, 2), (6, 4)])
def test_index_streams_are_blocked_where_printed(bits, stages):
    index = np.random.default_rng(0).integers(0, 64, (72, 17, stages))
    stream = oc.blocked(index, bits)
    width = 3 if bits == 6 else stages
    assert len(stream) == 2 * 17 * 64 * width
    assert (oc.unblocked(stream, 72, 17, width, 64, bits) == index).all()
    if bits == 8:
        assert stream[((1 * 17 + 16) * 64 + 7) * width] == index[71, 16, 0]


def test_halves_keep_subnormals_and_refuse_infinity():
    bits = np.array([0x0001, 0x0155, 0x03FF, 0x0400, 0x2000, 0x7BFF], "<u2")
    want = [2.0**-24, 0x155 * 2.0**-24, 0x3FF * 2.0**-24, 2.0**-14, 0.0078125, 65504]
    assert oc.halves(bits.tobytes(), "x").tolist() == want
    with pytest.raises(oc.Malformed):
        oc.halves(b"\x00\x7c", "x")


def test_a_flipped_payload_bit_is_a_checksum_error(minis, tmp_path):
    for f in minis[False].iterdir():
        (tmp_path / f.name).write_bytes(f.read_bytes())
    bank = bytearray((tmp_path / "experts-L1.bin").read_bytes())
    bank[20480 + 100] ^= 4
    (tmp_path / "experts-L1.bin").write_bytes(bank)
    box = oc.Container(tmp_path)
    box.expert(1, 0)
    with pytest.raises(oc.Malformed, match="layer 1 expert 1: checksum"):
        box.expert(1, 1)


# The golden mini's logits -----------------------------------------------------------------------


@pytest.mark.parametrize("kda", [oracle.kda_recurrent, oracle.kda_chunkwise])
@pytest.mark.parametrize("vq4p, l2_eps, latent_eps, argmax, logits, norm", [
    (False, 1e-6, 1e-6, 3, "-0.349424 0.807464 -0.467541 1.551289 -0.873633 0.521307 1.030977 "
     "-1.184687", 7.310722),
    (True, 1e-6, 1e-6, 1, "0.121233 1.637821 -0.029484 1.598594 -0.352855 0.872538 0.685957 "
     "-1.704944", 6.884755),
    (False, 1e-12, 1e-5, 3, "-0.349414 0.807456 -0.467541 1.551343 -0.873607 0.521341 1.030974 "
     "-1.184708", 7.310712),
    (True, 1e-12, 1e-5, 1, "0.121255 1.637831 -0.029494 1.598595 -0.352847 0.872496 0.685966 "
     "-1.704903", 6.884759),
])
def test_the_golden_mini_gives_the_printed_logits(minis, kda, vq4p, l2_eps, latent_eps, argmax,
                                                  logits, norm):
    trace = oracle.Model(minis[vq4p], l2_eps, latent_eps, kda).forward(oracle.MINI_IDS)
    last = trace.logits[-1]
    close(last[:8], [float(v) for v in logits.split()])
    close(np.linalg.norm(last), norm)
    assert last.argmax() == argmax
    assert [e.tolist() for e in trace.experts] == [[[1, 0], [0, 2], [3, 2], [1, 2]],
                                                   [[0, 1], [2, 3], [0, 1], [3, 2]]]


@pytest.mark.parametrize("l2_eps, latent_eps, want", [
    (1e-6, 1e-6, [1.542392, 1.489900, 1.422632, 1.349557]),
    (1e-12, 1e-5, [1.542440, 1.489860, 1.422555, 1.349543]),
])
def test_the_golden_mini_gives_the_printed_runners_up(minis, l2_eps, latent_eps, want):
    last = oracle.Model(minis[False], l2_eps, latent_eps).forward(oracle.MINI_IDS).logits[-1]
    assert np.argsort(-last)[:5].tolist() == [3, 58, 53, 26, 32]
    close(last[[58, 53, 26, 32]], want)


def test_the_manifest_can_set_the_latent_eps(minis):
    model = oracle.Model(minis[False])
    assert model.latent_eps == 1e-6
    box = minis[False].parent / "eps"
    oc.golden_mini(box)
    manifest = json.loads((box / "manifest.json").read_text())
    manifest["config"]["waste_latent_norm_eps"] = 1e-5
    (box / "manifest.json").write_text(json.dumps(manifest))
    assert oracle.Model(box).latent_eps == 1e-5
    assert oracle.Model(box, latent_eps=1e-3).latent_eps == 1e-3


# Scalars ------------------------------------------------------------------------------------


def test_situ_has_the_printed_values():
    args = [(1, 1), (-1, 2), (3, -7), (10, 50), (0.5, 0.25)]
    close([oracle.situ(np.float64(g), np.float64(u)) for g, u in args],
          [0.715817828, -0.525828896, -16.511479446, 95.108021534, 0.077402106], 9)
    close(oracle.situ(-20.0, 5.0), -4.1e-8, 9)
    assert oracle.situ(2.0, 300.0, 4.0, 0) == pytest.approx(75 * oracle.situ(2.0, 4.0, 4.0, 0))


def test_decay_gates_have_the_printed_values():
    close([oracle.decay_softplus(a, z) for a, z in [(0, 0), (0.5, 1), (1.2, -2), (2, 3)]],
          [-0.693147181, -2.165202478, -0.421415837, -22.526182963], 9)
    close([oracle.decay_bounded(a, z, -5) for a, z in [(0, 0), (0.5, 1), (1.2, -2), (-1, 0.3)]],
          [-2.5, -4.193590758, -0.006525082, -2.637814935], 9)


V3 = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
      "mscale_all_dim": 1, "original_max_position_embeddings": 4096}
K2 = {**V3, "factor": 32, "beta_fast": 1}
K2_0905 = {**V3, "factor": 64}


@pytest.mark.parametrize("base, scaling, want", [
    (1e4, V3, {0: 1, 10: 0.0562341325, 16: 0.0055, 19: 0.00137051364, 20: 0.000790569415,
               31: 3.33380358e-6}),
    (5e4, K2, {10: 0.0340072782, 16: 0.00447213595, 19: 0.00162175991, 20: 3.61404677e-5,
               31: 8.76441291e-7}),
])
def test_yarn_frequencies_are_as_printed(base, scaling, want):
    freq, _ = oracle.yarn(64, base, scaling)
    for j, f in want.items():
        assert freq[j] == pytest.approx(f, rel=5e-9)


@pytest.mark.parametrize("base, scaling, mu2, scale", [
    (1e4, V3, 1.8738542, 0.1352338), (5e4, K2, 1.8132604, 0.1308608),
    (5e4, K2_0905, 2.0047397, 0.1446796), (1e4, None, 1, 0.0721688), (1e4, {}, 1, 0.0721688),
])
def test_yarn_scales_attention_as_printed(base, scaling, mu2, scale):
    got = oracle.yarn(64, base, scaling)[1]
    close([got, got * 192**-0.5], [mu2, scale], 7)


# Structure ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", ["softplus", "bounded"])
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
@pytest.mark.parametrize("n", [1, 7, 16, 17, 64, 150])
def test_chunkwise_kda_agrees_with_the_recurrence(gate, chunk, n):
    rng = np.random.default_rng([n, chunk])
    heads, dim = 3, 16
    q, k, v, z = rng.normal(size=(4, n, heads, dim))
    q, k = oracle.l2_norm(q, 1e-6) / 4, oracle.l2_norm(k, 1e-6)
    a_log = rng.uniform(-1, np.log(16), (heads, 1))
    g = (oracle.decay_softplus(a_log, z) if gate == "softplus" else
         oracle.decay_bounded(a_log, z, -5.0))
    beta = oracle.sigmoid(rng.normal(size=(n, heads)))
    start = rng.normal(size=(heads, dim, dim))
    o, s = oracle.kda_recurrent(q, k, v, g, beta, start)
    o2, s2 = oracle.kda_chunkwise(q, k, v, g, beta, start, chunk)
    np.testing.assert_allclose(o2, o, atol=1e-12)
    np.testing.assert_allclose(s2, s, atol=1e-12)


def test_kda_without_beta_and_decay_keeps_its_state():
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(3, 5, 2, 8))
    start = rng.normal(size=(2, 8, 8))
    _, state = oracle.kda_recurrent(q, k, v, np.zeros((5, 2, 8)), np.zeros((5, 2)), start)
    assert (state == start).all()


def test_kda_answers_a_repeated_key_with_its_value():
    rng = np.random.default_rng(2)
    k = np.tile(oracle.l2_norm(rng.normal(size=(1, 2, 8)), 0), (4, 1, 1))
    v = np.tile(rng.normal(size=(1, 2, 8)), (4, 1, 1))
    o, _ = oracle.kda_recurrent(k, k, v, np.zeros((4, 2, 8)), np.ones((4, 2)),
                                rng.normal(size=(2, 8, 8)))
    np.testing.assert_allclose(o, v, atol=1e-12)


def test_the_convolution_puts_its_last_tap_on_the_newest_row():
    z = np.arange(1.0, 6)[:, None]
    w = np.array([[1000.0, 100, 10, 1]])
    assert oracle.causal_conv(z, w).ravel().tolist() == [1, 12, 123, 1234, 2345]


def test_mla_at_the_first_position_returns_its_value():
    model = oracle.Model(oracle.GOLDEN / "deepseek.waste")
    c, p = model.c, "model.layers.0.self_attn."
    x = np.random.default_rng(3).normal(size=(1, c["hidden_size"]))
    latent = model.linear(x, p + "kv_a_proj_with_mqa")[:, : c["kv_lora_rank"]]
    latent = model.norm(latent, p + "kv_a_layernorm", 1e-6)
    v = model.linear(latent, p + "kv_b_proj").reshape(c["num_attention_heads"], -1)
    v = v[:, c["qk_nope_head_dim"] :].reshape(1, -1)
    np.testing.assert_allclose(model.mla(p, x), model.linear(v, p + "o_proj"), atol=1e-12)


def test_equal_scores_select_the_first_ids_with_or_without_groups():
    assert oracle.select(np.full(32, 0.5), 8)[0].tolist() == list(range(8))
    assert oracle.select(np.full(32, 0.5), 8, 8, 4)[0].tolist() == list(range(8))
    assert oracle.select(np.full(32, -0.5), 8, 8, 4)[0].tolist() == list(range(8))


def test_groups_are_chosen_by_their_two_best():
    s = np.array([0.9, 0.0, 0.0, 0.5, 0.5, 0.1, 0.6, 0.45, 0.1])
    ids, margin = oracle.select(s, 3, 3, 2)
    assert ids.tolist() == [6, 3, 4]  # the best expert's group has too weak a second
    assert margin == pytest.approx(0.0)  # 3 and 4 tie
    assert oracle.select(s, 3, 3, 3)[0].tolist() == [0, 6, 3]


def test_attention_residuals_without_projection_are_a_mean():
    v = np.random.default_rng(4).normal(size=(5, 3, 16))
    got = oracle.attn_res(list(v[:4]), v[4], np.zeros(16), 1e-5)
    np.testing.assert_allclose(got, v.mean(axis=0), atol=1e-12)


def test_attention_residuals_of_93_layers_push_8_blocks_and_mix_186_times(monkeypatch):
    model = oracle.Model(oracle.GOLDEN / "k3.waste")
    h = model.c["hidden_size"]
    monkeypatch.setitem(model.c, "num_hidden_layers", 93)
    monkeypatch.setitem(model.c, "attn_res_block_size", 12)
    monkeypatch.setattr(model, "w", lambda name: np.ones(h))
    monkeypatch.setattr(model, "attention", lambda layer, x, trace: x)
    monkeypatch.setattr(model, "ffn", lambda layer, x, trace: x)
    trace = oracle.Trace([0])
    model.mixed_layers(np.ones((1, h)), trace)
    assert trace.pushes == list(range(0, 93, 12)) and len(trace.pushes) == 8
    assert trace.mixes == 186


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prefix_gives_the_rows_it_would_have_in_the_whole(name):
    ids = oc.golden_ids(name)
    model = oracle.Model(oracle.GOLDEN / f"{name}.waste")
    whole, part = model.forward(ids), model.forward(ids[:17])
    np.testing.assert_allclose(part.logits, whole.logits[:17], atol=1e-10)


# The committed goldens ------------------------------------------------------------------------


def digest(path):
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.iterdir()}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_committed_container_is_what_the_oracle_makes(regenerated, name):
    assert digest(oracle.GOLDEN / f"{name}.waste") == digest(regenerated / f"{name}.waste")


@pytest.mark.parametrize("name", FAMILIES + ["mini", "mini-vq4p"])
def test_the_committed_golden_is_what_the_oracle_computes(regenerated, name):
    want, got = (oracle.read_gold(d / f"{name}.gold") for d in (oracle.GOLDEN, regenerated))
    assert got.ids == want.ids
    assert (got.experts == want.experts).all()
    for field in ("layers", "normed", "logits", "states"):
        np.testing.assert_allclose(getattr(got, field), getattr(want, field), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_golden_has_the_shapes_of_its_container(name):
    gold = oracle.read_gold(oracle.GOLDEN / f"{name}.gold")
    c = oc.Container(oracle.GOLDEN / f"{name}.waste").config
    n, kda = len(gold.ids), c.get("linear_attn_config", {})
    assert n == 40
    assert gold.layers.shape == (c["num_hidden_layers"], n, c["hidden_size"])
    assert gold.logits.shape == (n, c["vocab_size"])
    assert gold.experts.shape == (c["num_hidden_layers"] - c["first_k_dense_replace"], n,
                                  c["num_experts_per_token"])
    assert gold.states.shape[:2] == (len(kda.get("kda_layers", [])), kda.get("num_heads", 0))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tiny_container_keeps_to_the_writers_rules(name):
    box = oc.Container(oracle.GOLDEN / f"{name}.waste")
    c, size = box.config, 0
    for flag in ("moe_renormalize", "latent_moe_use_norm", "mla_use_output_gate"):
        assert c.get(flag, True) is True
    assert c.get("linear_attn_config", {}).get("use_full_rank_gate", True) is True
    for t in box.manifest["trunk"]:  # back to back
        assert t["off"] == size and t["name"].startswith(box.prefix)
        size += t["bytes"]
    assert size == len(box.trunk)
    assert {box.prefix + n for n, _ in oc.required_tensors(c)} == set(box.entries)
    for layer in box.manifest["layers"]:
        for e in range(c["num_experts"]):
            rec, _, used = box.record(int(layer), e)
            assert not any(rec[used:])
    specials = json.loads((box.path / "specials.json").read_text())
    assert all(list(s) == ["id", "text"] and oc.N_RANKS <= s["id"] < c["vocab_size"]
               for s in specials)
    assert c["eos_token_id"] in [s["id"] for s in specials]


def without(key):
    return lambda c: c.pop(key)


def setting(key, value, inner=None):
    return lambda c: (c[inner] if inner else c).__setitem__(key, value)


@pytest.mark.parametrize("name, change", [
    ("kimi-linear", without("moe_renormalize")),
    ("kimi-linear", setting("routed_scaling_factor", 1.0)),
    ("kimi-linear", setting("mla_use_nope", False)),
    ("kimi-linear", setting("rms_norm_eps", 1e-2)),
    ("k3", without("mla_use_output_gate")),
    ("k3", without("latent_moe_use_norm")),
    ("k3", setting("attn_res_block_size", 3)),
    ("k3", setting("attn_res_block_size", 0)),
    ("k3", setting("gate_lower_bound", None, "linear_attn_config")),
    ("k3", setting("gate_lower_bound", -4.0, "linear_attn_config")),
    ("k3", setting("activation_situ_beta", 5.0)),
    ("k3", setting("activation_situ_linear_beta", 0.0)),
    ("deepseek", setting("topk_group", 4)),
    ("deepseek", setting("n_group", 1)),
    ("deepseek", without("rope_scaling")),
    ("deepseek", setting("beta_fast", 1, "rope_scaling")),
    ("deepseek", setting("mla_use_nope", True)),
    ("k2", setting("beta_fast", 32, "rope_scaling")),
    ("k2", setting("factor", 64, "rope_scaling")),
    ("k2", setting("rope_theta", 10000)),
])
def test_a_golden_notices_a_feature_that_is_left_out(name, change):
    want = oracle.read_gold(oracle.GOLDEN / f"{name}.gold")
    path = oracle.GOLDEN / f"{name}.waste"
    config = oc.Container(path).config
    change(config)
    got = oracle.Model(path, config=config).forward(want.ids)
    assert np.abs(got.logits - want.logits).max() > 2e-3


def test_eval_prints_what_the_library_computes(tmp_path):
    out = tmp_path / "trace.npz"
    path = oracle.GOLDEN / "k2.waste"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "oracle.py", "eval", path, "--ids", "3 7 11", "--json",
         "--layers-out", out], check=True, capture_output=True, text=True)
    trace = oracle.Model(path).forward([3, 7, 11])
    answer = json.loads(done.stdout)
    np.testing.assert_allclose(answer["logits"], trace.logits[-1], atol=1e-12)
    np.testing.assert_allclose(np.load(out)["layers"], trace.layers, atol=1e-12)
