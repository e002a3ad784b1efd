"""Gradients of m LuCA modules with their cosine heads, forward and backward written by hand.

Each gradient product is accumulated straight into the momentum buffer (beta = momentum), which saves the gradient
its own pass; workspaces are reused within a step, so that they and the parameters stay in cache; nothing is
allocated.  Several modules are one batched product.  The formulas are checked against autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workers.modeling.flat import HEAD, SCALE, FlatState
from workers.modeling.heads import NORM_FLOOR
from workers.modeling.luca import LAYER_NORM_EPS, Parameters
from workers.modeling.luca_settings import Flow

Reduce = Callable[[Tensor], None]

_aten: Any = torch.ops.aten
_NORMAL_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


class Step:
    """Runs steps on a ``FlatState``; keeps workspaces, one a batch size."""

    def __init__(
        self, state: FlatState, flow: Flow, *, momentum: float, reduce: Reduce | None = None
    ) -> None:
        self._state = state
        self._reduce = reduce
        self._momentum = momentum
        target = state.velocity if state.gradient is None else state.gradient
        beta = momentum if state.gradient is None else 0.0
        self._pass = _Pass(state.views(state.values), state.views(target), flow, beta)

    def gradients(self, features: Tensor, labels: Tensor, *, size: int, slot: Tensor) -> None:
        """Add the gradient of the mean cross-entropy of one batch to the decayed momentum.

        Args:
            features: this rank's rows [b, d] or [m, b, d].
            labels: int64 [b, 1] or [m, b, 1], rows of the head.
            size: samples of the batch over all ranks.
            slot: scalar or [m], receives the sum of the labels' log-probabilities over all ranks.
        """
        gradient = self._state.gradient
        if gradient is None:
            self._pass.run(features, labels, size, slot)
            return
        if features.shape[-2]:
            self._pass.run(features, labels, size, slot)
            gradient[:, -1] = slot
        else:
            gradient.zero_()
        if self._reduce is not None:
            self._reduce(gradient)
        slot.copy_(gradient[:, -1].view_as(slot))
        self._state.velocity.mul_(self._momentum).add_(gradient[:, :-1])


class _Pass:
    """Forward and backward of one batch; gradients are accumulated as ``beta * target + gradient``.

    The workspace holds five [b, d] blocks, each used for what its name says and then again: ``normed`` (before
    that the LayerNorm's input), ``a`` (LayerNorm's output), ``gate``, ``out`` (later scratch) and ``d_out`` (the
    gradient on its way back).
    """

    def __init__(self, values: Parameters, target: Parameters, flow: Flow, beta: float) -> None:
        self._flow = flow
        self._beta = beta
        self._p = values
        self._g = target
        self._t = {name: value.transpose(-1, -2) for name, value in values.items()}
        single = values[HEAD].dim() == 2
        self._work: dict[int, dict[str, Tensor]] = {}
        self._mm: Callable[..., Tensor] = torch.mm if single else torch.bmm
        self._addmm: Callable[..., Tensor] = torch.addmm if single else torch.baddbmm

    def run(self, x: Tensor, labels: Tensor, size: int, slot: Tensor) -> None:
        """One batch of features [b, d] or [m, b, d]; see ``Step.gradients``."""
        w = self._workspace(x)
        flow = self._flow
        gated = x
        if flow != "calibrator":
            gated = self._adapter(x, w)
        if flow == "adapter":
            outputs = gated
        else:
            if flow == "tosca_r":
                adapted, gated = gated, x
            outputs = self._gate(gated, w)
            if flow == "tosca_r":
                outputs.add_(adapted)
        self._head(outputs, labels, size, slot, w)
        if flow != "adapter":
            self._gate_backward(gated, w)
        if flow != "calibrator":
            self._adapter_backward(x, w)

    def _adapter(self, x: Tensor, w: dict[str, Tensor]) -> Tensor:
        """LN(x + M(x)), or LN(M(x)).  GELU is h * F(h) with the normal distribution F."""
        p, t = self._p, self._t
        hidden, z, rstd = w["hidden"], w["normed"], w["rstd"]
        width = z.shape[-1]
        self._addmm(p["mlp.0.bias"], x, t["mlp.0.weight"], out=hidden)
        torch.mul(hidden, math.sqrt(0.5), out=w["erf"]).erf_()
        torch.add(w["half"], w["erf"], alpha=0.5, out=w["cdf"])
        torch.mul(hidden, w["cdf"], out=w["active"])
        if self._flow == "tosca":
            torch.add(x, p["mlp.2.bias"], out=z)
            self._accumulate(z, w["active"], t["mlp.2.weight"], 1.0)
        else:
            self._addmm(p["mlp.2.bias"], w["active"], t["mlp.2.weight"], out=z)
        torch.sum(z, -1, keepdim=True, out=w["sum"])
        z.sub_(w["sum"], alpha=1.0 / width)
        torch.linalg.vector_norm(z, dim=-1, keepdim=True, out=rstd)
        torch.addcmul(w["eps"], rstd, rstd, value=1.0 / width, out=rstd).rsqrt_()
        return torch.addcmul(p["norm.bias"], z.mul_(rstd), p["norm.weight"], out=w["a"])

    def _gate(self, v: Tensor, w: dict[str, Tensor]) -> Tensor:
        """v * g(v)."""
        t = self._t
        self._mm(v, t["se.0.weight"], out=w["rectified"]).clamp_min_(0.0)
        self._mm(w["rectified"], t["se.2.weight"], out=w["gate"]).sigmoid_()
        return torch.mul(v, w["gate"], out=w["out"])

    def _head(
        self, o: Tensor, labels: Tensor, size: int, slot: Tensor, w: dict[str, Tensor]
    ) -> None:
        """Cosine logits and cross-entropy; leaves dL/do in ``d_out``.

        With r = s / (|o_i| |w_j|) the logits are l = r * <o_i, w_j>.  Let q = dL/dl and e = q * l; then
        dL/dw_j = (q * r)^T o - w_j * sum_i e / |w_j|^2, likewise dL/do, and dL/ds = sum e / s: no pass over
        [b, d] is spent on normalising.  A zero row has l = 0, so its gradient is the first term over the
        norm floor, as autograd has it.
        """
        p, g = self._p, self._g
        rows = p[HEAD]
        torch.linalg.vector_norm(o, dim=-1, keepdim=True, out=w["o_norm"]).clamp_min_(NORM_FLOOR)
        torch.linalg.vector_norm(rows, dim=-1, keepdim=True, out=w["w_norm"]).clamp_min_(NORM_FLOOR)
        ratio = torch.div(p[SCALE], w["o_norm"], out=w["ratio"]) / w["w_norm_t"]
        self._mm(rows, w["o_t"] if o is w["out"] else w["a_t"], out=w["products"])
        logits = torch.mul(w["products_t"], ratio, out=w["logits"])
        log_p = torch.log_softmax(logits, -1)
        torch.sum(torch.gather(log_p, -1, labels), (-2, -1), out=slot)
        q = log_p.exp_().scatter_add_(-1, labels, w["minus_ones"]).div_(size)
        e = logits.mul_(q)
        k = q.mul_(ratio)
        of_rows = e.sum(-2, keepdim=True)
        g[SCALE].mul_(self._beta).addcdiv_(of_rows.sum(-1, keepdim=True), p[SCALE])
        self._accumulate(g[HEAD], k.transpose(-1, -2), o, self._beta)
        shrink = of_rows.transpose(-1, -2) / w["w_norm"].square_()
        g[HEAD].addcmul_(rows, shrink, value=-1.0)
        shrink = e.sum(-1, keepdim=True).div_(w["o_norm"].square_())
        self._mm(k, rows, out=w["d_out"]).addcmul_(o, shrink, value=-1.0)

    def _gate_backward(self, v: Tensor, w: dict[str, Tensor]) -> None:
        """Gradients of the gate; turns ``d_out`` into dL/da where the gate reads a."""
        p, g = self._p, self._g
        gate, rectified, d_out, d_rectified = (
            w["gate"],
            w["rectified"],
            w["d_out"],
            w["d_rectified"],
        )
        d_gate = torch.mul(d_out, v, out=w["out"])
        _aten.sigmoid_backward.grad_input(d_gate, gate, grad_input=d_gate)
        self._accumulate(g["se.2.weight"], w["o_t"], rectified, self._beta)
        self._mm(d_gate, p["se.2.weight"], out=d_rectified)
        _aten.threshold_backward.grad_input(d_rectified, rectified, 0, grad_input=d_rectified)
        self._accumulate(g["se.0.weight"], w["d_rectified_t"], v, self._beta)
        if self._flow == "tosca":
            self._accumulate(d_out.mul_(gate), d_rectified, p["se.0.weight"], 1.0)

    def _adapter_backward(self, x: Tensor, w: dict[str, Tensor]) -> None:
        """Gradients of LayerNorm and adapter from dL/da in ``d_out``."""
        p, g, beta, ones, gain = self._p, self._g, self._beta, w["ones"], self._t["norm.weight"]
        d_a, normed, hidden, d_hidden = w["d_out"], w["normed"], w["hidden"], w["d_hidden"]
        share = -1.0 / d_a.shape[-1]
        self._mm(d_a, gain, out=w["sum"])
        self._accumulate(g["norm.bias"], ones, d_a, beta)
        scratch = torch.mul(d_a, normed, out=w["out"])
        projection = self._mm(scratch, gain, out=w["o_norm"])
        self._accumulate(g["norm.weight"], ones, scratch, beta)
        d_z = d_a.mul_(p["norm.weight"]).addcmul_(normed, projection, value=share)
        d_z.add_(w["sum"], alpha=share).mul_(w["rstd"])
        self._accumulate(g["mlp.2.bias"], ones, d_z, beta)
        self._accumulate(g["mlp.2.weight"], w["d_out_t"], w["active"], beta)
        self._mm(d_z, p["mlp.2.weight"], out=d_hidden)
        density = torch.mul(hidden, hidden, out=w["erf"]).mul_(-0.5).exp_()
        d_hidden.mul_(w["cdf"].addcmul_(hidden, density, value=_NORMAL_DENSITY))
        self._accumulate(g["mlp.0.bias"], ones, d_hidden, beta)
        self._accumulate(g["mlp.0.weight"], w["d_hidden_t"], x, beta)

    def _accumulate(self, target: Tensor, left: Tensor, right: Tensor, beta: float) -> None:
        self._addmm(target, left, right, beta=beta, out=target)

    def _workspace(self, x: Tensor) -> dict[str, Tensor]:
        batch = x.shape[-2]
        if batch not in self._work:
            self._work[batch] = self._new_workspace(x)
        return self._work[batch]

    def _new_workspace(self, x: Tensor) -> dict[str, Tensor]:
        lead, batch, width = x.shape[:-2], x.shape[-2], x.shape[-1]
        classes = self._p[HEAD].shape[-2]
        sizes = {
            **dict.fromkeys(("normed", "a", "gate", "out", "d_out"), (batch, width)),
            **dict.fromkeys(("sum", "rstd", "o_norm", "ratio"), (batch, 1)),
            "w_norm": (classes, 1),
            "products": (classes, batch),
            "logits": (batch, classes),
        }
        if "mlp.0.weight" in self._p:
            shape = (batch, self._p["mlp.0.weight"].shape[-2])
            sizes |= dict.fromkeys(("hidden", "erf", "cdf", "active", "d_hidden"), shape)
        if "se.0.weight" in self._p:
            shape = (batch, self._p["se.0.weight"].shape[-2])
            sizes |= dict.fromkeys(("rectified", "d_rectified"), shape)
        w = {name: x.new_empty(*lead, *size) for name, size in sizes.items()}
        w |= {f"{name}_t": value.transpose(-1, -2) for name, value in w.items()}
        w["o_t"] = w["out_t"]
        w["minus_ones"] = -x.new_ones(*lead, batch, 1)
        w["ones"] = x.new_ones(*lead, 1, batch)
        w["half"] = x.new_full((1,), 0.5)
        w["eps"] = x.new_full((1,), LAYER_NORM_EPS)
        return w
