"""One optimisation step of m LuCA modules with their cosine heads, forward and backward written by hand.

All parameters of a module lie in one flat row, so momentum, weight update and L1 term are a few passes over one
buffer; each gradient product is accumulated straight into the momentum buffer (beta = momentum), which saves
the gradient its own pass.  Several modules are one batched product.  The formulas are checked against autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.modeling.heads import NORM_FLOOR
from workers.modeling.luca import LAYER_NORM_EPS, Flow, Parameters

Reduce = Callable[[Tensor], None]

_aten: Any = torch.ops.aten
_HEAD, _SCALE = "head", "scale"


class FlatState:
    """Values and momentum of m equal-shaped modules, heads and scales, one flat row each.

    The penalised parameters come first, so that the L1 term acts on one slice.
    """

    def __init__(
        self,
        modules: Sequence[Parameters],
        heads: Sequence[Tensor],
        scales: Sequence[Tensor],
        *,
        penalised: frozenset[str],
        with_gradient: bool,
    ) -> None:
        rows = [
            {**module, _HEAD: head, _SCALE: scale.reshape(1)}
            for module, head, scale in zip(modules, heads, scales, strict=True)
        ]
        names = sorted(rows[0], key=lambda name: name not in penalised)
        self.count = len(rows)
        self.penalised = sum(rows[0][name].numel() for name in names if name in penalised)
        self.values = torch.stack(
            [torch.cat([row[name].reshape(-1) for name in names]) for row in rows]
        )
        self.velocity = torch.zeros_like(self.values)
        # one more column than parameters: the batch's loss is reduced together with the gradient
        self.gradient = (
            self.values.new_zeros(self.count, self.values.shape[1] + 1) if with_gradient else None
        )
        self._slices: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        start = 0
        for name in names:
            shape = tuple(rows[0][name].shape)
            self._slices[name] = (start, start + rows[0][name].numel(), shape)
            start += rows[0][name].numel()

    def views(self, buffer: Tensor) -> Parameters:
        """Named views into a flat buffer: matrices [m, a, b], vectors as rows [m, 1, a]; no m if it is one."""
        named: Parameters = {}
        for name, (start, stop, shape) in self._slices.items():
            matrix = shape if len(shape) == 2 else (1, *shape)
            view = buffer[:, start:stop].view(self.count, *matrix)
            named[name] = view[0] if self.count == 1 else view
        return named

    def module(self, index: int) -> tuple[Parameters, Tensor, Tensor]:
        """Copies of module ``index``: its parameters, head and scale."""
        copies = {
            name: self.values[index, start:stop].reshape(shape).clone()
            for name, (start, stop, shape) in self._slices.items()
        }
        head, scale = copies.pop(_HEAD), copies.pop(_SCALE)
        return copies, head, scale.reshape(())


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

    def gradients(self, features: Tensor, labels: Tensor, *, size: int, losses: Tensor) -> None:
        """Add the gradient of the mean cross-entropy of one batch to the decayed momentum.

        Args:
            features: this rank's rows [b, d] or [m, b, d].
            labels: int64 [b, 1] or [m, b, 1], rows of the head.
            size: samples of the batch over all ranks.
            losses: [m], receives the cross-entropy of the batch.
        """
        gradient = self._state.gradient
        if gradient is None:
            losses.copy_(self._pass.run(features, labels, size))
            return
        if features.shape[-2]:
            gradient[:, -1] = self._pass.run(features, labels, size)
        else:
            gradient.zero_()
        if self._reduce is not None:
            self._reduce(gradient)
        losses.copy_(gradient[:, -1])
        self._state.velocity.mul_(self._momentum).add_(gradient[:, :-1])


class _Pass:
    """Forward and backward of one batch; gradients are accumulated as ``beta * target + gradient``."""

    def __init__(self, values: Parameters, target: Parameters, flow: Flow, beta: float) -> None:
        self._flow = flow
        self._beta = beta
        self._p = values
        self._g = target
        self._t = {name: value.transpose(-1, -2) for name, value in values.items()}
        self._single = values[_HEAD].dim() == 2
        self._work: dict[int, dict[str, Tensor]] = {}
        self._mm: Callable[..., Tensor] = torch.mm if self._single else torch.bmm
        self._addmm: Callable[..., Tensor] = torch.addmm if self._single else torch.baddbmm

    def run(self, x: Tensor, labels: Tensor, size: int) -> Tensor:
        """One batch; returns its share of the mean cross-entropy, [m] (a scalar for one)."""
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
        loss = self._head(outputs, labels, size, w)
        upstream = w["d_out"]
        if flow != "adapter":
            upstream = self._gate_backward(gated, upstream, w)
        if flow != "calibrator":
            self._adapter_backward(x, upstream, w)
        return loss

    def _adapter(self, x: Tensor, w: dict[str, Tensor]) -> Tensor:
        p, t = self._p, self._t
        self._addmm(p["mlp.0.bias"], x, t["mlp.0.weight"], out=w["hidden"])
        _aten.gelu.out(w["hidden"], out=w["active"])
        if self._flow == "tosca":
            torch.add(x, p["mlp.2.bias"], out=w["z"])
            self._accumulate(w["z"], w["active"], t["mlp.2.weight"], 1.0)
        else:
            self._addmm(p["mlp.2.bias"], w["active"], t["mlp.2.weight"], out=w["z"])
        w["normed"], w["mean"], w["rstd"] = torch.native_layer_norm(
            w["z"], w["z"].shape[-1:], None, None, LAYER_NORM_EPS
        )
        return torch.addcmul(p["norm.bias"], w["normed"], p["norm.weight"], out=w["a"])

    def _gate(self, v: Tensor, w: dict[str, Tensor]) -> Tensor:
        t = self._t
        self._mm(v, t["se.0.weight"], out=w["rectified"]).clamp_min_(0.0)
        self._mm(w["rectified"], t["se.2.weight"], out=w["gate"]).sigmoid_()
        return torch.mul(v, w["gate"], out=w["out"])

    def _head(self, o: Tensor, labels: Tensor, size: int, w: dict[str, Tensor]) -> Tensor:
        """Cosine logits and cross-entropy; leaves d loss / d outputs in ``d_out``.

        With r = 1 / (|o_i| |w_j|), c = cos and e = dL/dcos * cos, the gradient of row j is
        (dL/dcos * r)^T o - w_j * sum_i e / |w_j|^2, and likewise for outputs; no [n, d] pass is spent
        on normalising.  A zero row has cos = 0, so only its first term remains, over the norm floor.
        """
        p, t, g = self._p, self._t, self._g
        o_norm = torch.linalg.vector_norm(o, dim=-1, keepdim=True).clamp_min_(NORM_FLOOR)
        w_norm = torch.linalg.vector_norm(p[_HEAD], dim=-1, keepdim=True).clamp_min_(NORM_FLOOR)
        inverse = torch.mul(o_norm, w_norm.transpose(-1, -2), out=w["inverse"]).reciprocal_()
        cosines = self._mm(o, t[_HEAD], out=w["cosines"]).mul_(inverse)
        log_p = torch.log_softmax(torch.mul(cosines, p[_SCALE], out=w["logits"]), -1)
        loss = log_p.gather(-1, labels).sum((-2, -1)).div_(-size)
        d_logits = torch.exp(log_p, out=w["logits"])
        d_logits.scatter_add_(-1, labels, w["minus_ones"]).div_(size)
        scale_gradient = torch.mul(d_logits, cosines, out=w["e"]).sum((-2, -1), keepdim=True)
        g[_SCALE].mul_(self._beta).add_(scale_gradient)
        e = w["e"].mul_(p[_SCALE])
        k = d_logits.mul_(p[_SCALE]).mul_(inverse)
        rows = e.sum(-2, keepdim=True).transpose(-1, -2).div_(w_norm).div_(w_norm)
        self._accumulate(g[_HEAD], k.transpose(-1, -2), o, self._beta)
        g[_HEAD].addcmul_(p[_HEAD], rows, value=-1.0)
        columns = e.sum(-1, keepdim=True).div_(o_norm).div_(o_norm)
        self._mm(k, p[_HEAD], out=w["d_out"]).addcmul_(o, columns, value=-1.0)
        return loss

    def _gate_backward(self, v: Tensor, d_out: Tensor, w: dict[str, Tensor]) -> Tensor:
        p, g = self._p, self._g
        gate, rectified = w["gate"], w["rectified"]
        torch.mul(d_out, v, out=w["d_gate"])
        d_gate = _aten.sigmoid_backward.grad_input(w["d_gate"], gate, grad_input=w["d_gate"])
        self._accumulate(g["se.2.weight"], w["d_gate_t"], rectified, self._beta)
        self._mm(d_gate, p["se.2.weight"], out=w["d_rectified"])
        _aten.threshold_backward.grad_input(
            w["d_rectified"], rectified, 0, grad_input=w["d_rectified"]
        )
        self._accumulate(g["se.0.weight"], w["d_rectified_t"], v, self._beta)
        if self._flow == "tosca":
            d_out.mul_(gate)
            self._accumulate(d_out, w["d_rectified"], p["se.0.weight"], 1.0)
        return d_out

    def _adapter_backward(self, x: Tensor, d_a: Tensor, w: dict[str, Tensor]) -> None:
        p, g, beta, ones = self._p, self._g, self._beta, w["ones"]
        scratch = torch.mul(d_a, w["normed"], out=w["scratch"])
        self._accumulate(g["norm.weight"], ones, scratch, beta)
        self._accumulate(g["norm.bias"], ones, d_a, beta)
        torch.mul(d_a, p["norm.weight"], out=scratch)
        d_z = _aten.native_layer_norm_backward(
            scratch,
            w["z"],
            w["z"].shape[-1:],
            w["mean"],
            w["rstd"],
            None,
            None,
            (True, False, False),
        )[0]
        self._accumulate(g["mlp.2.bias"], ones, d_z, beta)
        self._accumulate(g["mlp.2.weight"], d_z.transpose(-1, -2), w["active"], beta)
        d_hidden = self._mm(d_z, p["mlp.2.weight"], out=w["d_hidden"])
        _aten.gelu_backward.grad_input(d_hidden, w["hidden"], grad_input=d_hidden)
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
        classes = self._p[_HEAD].shape[-2]
        wide = ["z", "a", "out", "gate", "d_out", "d_gate", "scratch"]
        w = {name: x.new_empty(*lead, batch, width) for name in wide}
        for name in ("inverse", "cosines", "logits", "e"):
            w[name] = x.new_empty(*lead, batch, classes)
        w["minus_ones"] = -x.new_ones(*lead, batch, 1)
        w["ones"] = x.new_ones(*lead, 1, batch)
        for name, first in (("hidden", "mlp.0.weight"), ("rectified", "se.0.weight")):
            if first in self._p:
                rank = self._p[first].shape[-2]
                w[name], w[f"d_{name}"] = (x.new_empty(*lead, batch, rank) for _ in range(2))
                w[f"d_{name}_t"] = w[f"d_{name}"].transpose(-1, -2)
        if "mlp.0.weight" in self._p:
            w["active"] = torch.empty_like(w["hidden"])
        w["d_gate_t"] = w["d_gate"].transpose(-1, -2)
        return w


class Update:
    """The weight update: momentum SGD with the L1 term as subgradient or as proximal step.

    ``subgradient`` adds l1 * sign(p) to the gradient, as autograd would.  ``proximal`` soft-thresholds after
    the step by lr * l1 / (1 - momentum): momentum multiplies a steady gradient by 1 / (1 - momentum), and with
    the same factor on the threshold both modes have the same stationary points, the minimisers of
    loss + l1 * |p|; but proximal reaches exact zeros.
    """

    def __init__(
        self, state: FlatState, *, l1: Sequence[float], proximal: bool, momentum: float
    ) -> None:
        self._state = state
        self._l1 = list(l1)
        self._proximal = proximal and state.penalised > 0
        self._momentum = momentum
        self._part = state.values[:, : state.penalised]
        self._sign = torch.empty_like(self._part)
        self._l1_column = state.values.new_tensor([[value] for value in l1])
        self._alike = len(set(l1)) == 1
        self._subgradient = not proximal and state.penalised > 0 and any(l1)

    def penalty(self) -> Tensor:
        """l1 * sum |p| over the penalised parameters, [m]."""
        return self._part.abs().sum(1).mul_(self._l1_column[:, 0])

    def apply(self, rates: Sequence[float]) -> None:
        """Update the weights from the momentum buffer, which holds this batch's gradient already."""
        state, part = self._state, self._part
        if self._subgradient:
            torch.sign(part, out=self._sign)
            velocity = state.velocity[:, : state.penalised]
            if self._alike:
                velocity.add_(self._sign, alpha=self._l1[0])
            else:
                velocity.addcmul_(self._sign, self._l1_column)
        if len(set(rates)) == 1:
            state.values.add_(state.velocity, alpha=-rates[0])
        else:
            column = state.values.new_tensor([[rate] for rate in rates])
            state.values.addcmul_(state.velocity, column, value=-1.0)
        if self._proximal:
            self._shrink(rates)

    def _shrink(self, rates: Sequence[float]) -> None:
        limits = [
            rate * l1 / (1.0 - self._momentum) for rate, l1 in zip(rates, self._l1, strict=True)
        ]
        part = self._part
        if len(set(limits)) == 1:
            if limits[0] > 0:
                _aten.softshrink.out(part, limits[0], out=part)
            return
        for index, limit in enumerate(limits):
            if limit > 0:
                _aten.softshrink.out(part[index], limit, out=part[index])
