"""demo_model.py - the Kimi-Linear forward pass in torch, made for training on CPUs.

Parameters carry the released names, so a checkpoint is the state dict. Sequences start from an
empty state. KDA runs chunkwise, with exponents that are never positive; experts see the rows
that chose them, gathered.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 256,
    "num_hidden_layers": 8, "first_k_dense_replace": 1, "intermediate_size": 512,
    "moe_intermediate_size": 64, "num_experts": 32, "num_experts_per_token": 4,
    "num_shared_experts": 4, "num_expert_group": 1, "topk_group": 1, "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "use_grouped_topk": True,
    "routed_scaling_factor": 2.0, "num_attention_heads": 4, "num_key_value_heads": 4,
    "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 64, "kv_lora_rank": 64,
    "q_lora_rank": None, "mla_use_nope": True, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "rope_scaling": None, "model_max_length": 4096,
    "num_nextn_predict_layers": 0, "tie_word_embeddings": False, "vocab_size": 4128,
    "bos_token_id": 4096, "eos_token_id": 4098, "pad_token_id": 4127,
    "linear_attn_config": {"head_dim": 64, "num_heads": 4, "short_conv_kernel_size": 4,
                           "kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8]},
}
CHUNK = 32
L2_EPS = LATENT_EPS = 1e-6


def linear(rows, cols, gain=1.0):
    layer = nn.Linear(cols, rows, bias=False)
    nn.init.normal_(layer.weight, std=gain * 0.5 / math.sqrt(cols))
    return layer


class Weight(nn.Module):
    """A parameter that is released as NAME.weight."""

    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(value)


class Norm(Weight):
    def __init__(self, width, eps):
        super().__init__(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


# Kimi Delta Attention -----------------------------------------------------------------------


class UnitLowerInverse(torch.autograd.Function):
    """(I + a)^-1 of strictly lower triangular a."""

    @staticmethod
    def forward(ctx, a):
        eye = torch.eye(a.shape[-1], dtype=a.dtype).expand_as(a)
        t = torch.linalg.solve_triangular(a + eye, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx, grad):
        t = ctx.saved_tensors[0].transpose(-1, -2)
        return -(t @ grad @ t).tril(-1)


def faded_products(q, k, total):
    """[2][...][n][n]: (q_i . k_j) and (k_i . k_j), each channel times e^(total_i - total_j), for
    i >= j; zero above. Blocks double in size; the one below the diagonal is a product of two
    matrices, both faded towards the first row of its own half, so that no exponent is positive."""
    *batch, n, dim = q.shape
    both = torch.stack([q, k])
    out = (both * k).sum(-1)[..., None, None]
    m = 1
    while m < n:
        t = total.view(*batch, n // (2 * m), 2, m, dim)
        mark = t[..., 1, :1, :]
        late = (t[..., 1, :, :] - mark).exp()
        early = (mark - t[..., 0, :, :]).exp() * k.view_as(t)[..., 0, :, :]
        late = both.view(2, *t.shape)[..., 1, :, :] * late
        if m == 1:
            low = (late * early).sum(-1, keepdim=True)
        else:
            low = late @ early.transpose(-1, -2)
        parts = out.view(2, *batch, n // (2 * m), 2, m, m)
        top = torch.cat([parts[..., 0, :, :], torch.zeros_like(low)], -1)
        out = torch.cat([top, torch.cat([low, parts[..., 1, :, :]], -1)], -2)
        m *= 2
    return out.squeeze(-3)


def kda(q, k, v, g, beta, chunk=CHUNK):
    """Chunkwise KDA. q, k, v, g: [B][T][H][D]; beta: [B][T][H]. Returns o like v."""
    size, length, heads, dim = q.shape
    pad = -length % chunk

    def chunks(x):
        x = F.pad(x, (0, 0, 0, 0, 0, pad)).transpose(1, 2)
        return x.reshape(size * heads, -1, chunk, x.shape[-1])

    q, k, v, g, beta = (chunks(x) for x in (q, k, v, g, beta[..., None]))
    total = g.cumsum(-2)
    qk, kk = faded_products(q, k, total)
    inverse = UnitLowerInverse.apply(beta * kk.tril(-1))
    since = total.exp()
    faded_q, faded_k = since * q, inverse @ (beta * since * k)
    fresh = inverse @ (beta * v)
    until = ((total[..., -1:, :] - total).exp() * k).transpose(-1, -2)
    decay = since[..., -1, :, None]
    reads = torch.cat([faded_k, faded_q], -2)
    state = v.new_zeros(size * heads, dim, dim)
    out = []
    for reads_c, fresh_c, qk_c, until_c, decay_c in zip(*(x.unbind(1) for x in (
            reads, fresh, qk, until, decay))):
        old, seen = (reads_c @ state).split(chunk, 1)
        new = fresh_c - old
        out.append(seen + qk_c @ new)
        state = decay_c * state + until_c @ new
    out = torch.stack(out, 1).view(size, heads, -1, dim)
    return out.transpose(1, 2)[:, :length]


class Delta(nn.Module):
    def __init__(self, c):
        super().__init__()
        lin, h = c["linear_attn_config"], c["hidden_size"]
        self.heads, self.dim = heads, dim = lin["num_heads"], lin["head_dim"]
        wide, taps = heads * dim, lin["short_conv_kernel_size"]
        for x in "qkv":
            setattr(self, x + "_proj", linear(wide, h))
            tap = torch.zeros(wide, 1, taps)
            tap[:, 0, -1] = 1
            setattr(self, x + "_conv1d", Weight(tap + 0.1 * torch.randn_like(tap)))
        self.f_a_proj, self.f_b_proj = linear(dim, h), linear(wide, dim)
        self.g_a_proj, self.g_b_proj = linear(dim, h), linear(wide, dim)
        self.b_proj = linear(heads, h)
        self.A_log = nn.Parameter(torch.empty(1, 1, heads, 1).uniform_(1, 8).log())
        step = torch.exp(torch.empty(wide).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(step.expm1().log())  # softplus of it is the step
        self.o_norm = Norm(dim, c["rms_norm_eps"])
        self.o_proj = linear(h, wide, 1 / math.sqrt(2 * c["num_hidden_layers"]))

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, self.dim)
        z = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        taps = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])
        n = taps.shape[-1]
        padded = F.pad(z, (0, 0, n - 1, 0))
        z = sum(padded[:, i : i + x.shape[1]] * taps[:, 0, i] for i in range(n))
        q, k, v = (y.view(shape) for y in F.silu(z).chunk(3, -1))
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + L2_EPS) for y in (q, k))
        z = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).view(shape)
        g = -self.A_log.exp() * F.softplus(z)
        o = kda(q / math.sqrt(self.dim), k, v, g, torch.sigmoid(self.b_proj(x)))
        gate = torch.sigmoid(self.g_b_proj(self.g_a_proj(x)))
        return self.o_proj(self.o_norm(o).flatten(2) * gate)


# Multi-head latent attention ------------------------------------------------------------------


class Latent(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.heads = c["hidden_size"], c["num_attention_heads"]
        self.nope, self.rope = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        self.rank, v = c["kv_lora_rank"], c["v_head_dim"]
        self.q_proj = linear(self.heads * (self.nope + self.rope), h)
        self.kv_a_proj_with_mqa = linear(self.rank + self.rope, h)
        self.kv_a_layernorm = Norm(self.rank, LATENT_EPS)
        self.kv_b_proj = linear(self.heads * (self.nope + v), self.rank)
        self.o_proj = linear(h, self.heads * v, 1 / math.sqrt(2 * c["num_hidden_layers"]))

    def forward(self, x):
        size, length, _ = x.shape
        q = self.q_proj(x).view(size, length, self.heads, -1).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(size, length, self.heads, -1)
        k, v = kv[..., : self.nope].transpose(1, 2), kv[..., self.nope :].transpose(1, 2)
        shared = shared[:, None].expand(-1, self.heads, -1, -1)  # scored, never rotated
        s = q @ torch.cat([k, shared], -1).transpose(-1, -2) / math.sqrt(self.nope + self.rope)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        o = s.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.o_proj(o.transpose(1, 2).flatten(2))


# Feed-forward -----------------------------------------------------------------------------------


class MLP(nn.Module):
    def __init__(self, c, width):
        super().__init__()
        h = c["hidden_size"]
        self.gate_proj, self.up_proj = linear(width, h), linear(width, h)
        self.down_proj = linear(h, width, 1 / math.sqrt(2 * c["num_hidden_layers"]))

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c["num_experts"], c["hidden_size"])
                                   / math.sqrt(c["hidden_size"]))
        self.register_buffer("e_score_correction_bias", torch.zeros(c["num_experts"]))


class MoE(nn.Module):
    """The experts are three stacks here; release() takes them apart."""

    def __init__(self, c):
        super().__init__()
        n, h, m = c["num_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.top, self.scale = c["num_experts_per_token"], c["routed_scaling_factor"]
        self.gate = Gate(c)
        deep = 0.5 / math.sqrt(2 * c["num_hidden_layers"])
        self.w1 = nn.Parameter(torch.randn(n, m, h) * 0.5 / math.sqrt(h))
        self.w3 = nn.Parameter(torch.randn(n, m, h) * 0.5 / math.sqrt(h))
        self.w2 = nn.Parameter(torch.randn(n, h, m) * deep / math.sqrt(m))
        self.shared_experts = MLP(c, c["num_shared_experts"] * m)
        self.counts = torch.zeros(n)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        score = torch.sigmoid(F.linear(rows, self.gate.weight))
        chosen = (score.detach() + self.gate.e_score_correction_bias).topk(self.top, -1).indices
        weight = score.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scale
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.w1))
        self.counts = counts
        source = order // self.top
        parts = rows[source].split(counts.tolist())
        out = [F.linear(F.silu(F.linear(p, w1)) * F.linear(p, w3), w2) for p, w1, w3, w2 in
               zip(parts, self.w1.unbind(0), self.w3.unbind(0), self.w2.unbind(0))]
        out = torch.cat(out) * weight.flatten()[order][:, None]
        routed = torch.zeros_like(rows).index_add(0, source, out)
        return routed.view_as(x) + self.shared_experts(x)

    @torch.no_grad()
    def balance(self, counts, rate):
        """Loss-free balancing: raise the bias of experts below the mean load, lower the rest."""
        self.gate.e_score_correction_bias += rate * torch.sign(counts.mean() - counts)


# The model ----------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, c, number):
        super().__init__()
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        kda_layers = c["linear_attn_config"]["kda_layers"]  # 1-based
        self.self_attn = Delta(c) if number + 1 in kda_layers else Latent(c)
        self.input_layernorm, self.post_attention_layernorm = Norm(h, eps), Norm(h, eps)
        self.dense = number < c["first_k_dense_replace"]
        if self.dense:
            self.mlp = MLP(c, c["intermediate_size"])
        else:
            self.block_sparse_moe = MoE(c)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        ffn = self.mlp if self.dense else self.block_sparse_moe
        return x + ffn(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = Weight(torch.randn(c["vocab_size"], c["hidden_size"]) * 0.1)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class KimiLinear(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = linear(config["vocab_size"], config["hidden_size"])

    def forward(self, ids):
        """ids: [B][T]. Returns logits [B][T][V]."""
        x = F.embedding(ids, self.model.embed_tokens.weight)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))

    def moes(self):
        return [x.block_sparse_moe for x in self.model.layers if not x.dense]

    def release(self):
        """{released name: tensor}, one per matrix."""
        out = {}
        for name, value in self.state_dict().items():
            base, leaf = name.rpartition(".")[::2]
            if leaf in ("w1", "w2", "w3"):
                out.update({f"{base}.experts.{e}.{leaf}.weight": w for e, w in enumerate(value)})
            else:
                out[name] = value
        return out

    def load_release(self, tensors):
        """The inverse of release()."""
        state = {}
        for name in self.state_dict():
            base, leaf = name.rpartition(".")[::2]
            if leaf in ("w1", "w2", "w3"):
                n = self.config["num_experts"]
                state[name] = torch.stack([tensors[f"{base}.experts.{e}.{leaf}.weight"]
                                           for e in range(n)])
            else:
                state[name] = tensors[name]
        self.load_state_dict(state)
