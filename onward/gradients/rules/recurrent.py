"""Gradients of recurrent layers: RNN, GRU, LSTM.

The forward remains one fused node. The gates of all steps are computed again from X and Y, in large
products (an LSTM's cells by a Scan without matrix products), and their slopes as well. Then a Scan
from the last step to the first has a linear body: a few elementwise products and one matrix product
(GRU: two). It returns da, the gradient of the activations' inputs, of every step; dW, dR, dB and dX
are large matrix products again.

After the end of a sequence, slopes are zero and the gradients of states are passed on.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import Gradient, GradientTable, absent
from onward.gradients.rules.recurrent_activations import Activation, activations
from onward.gradients.rules.recurrent_layer import Direction, RecurrentLayer, joined, scan
from onward.passes.value_facts import attribute

gradient = GradientTable()


# -- RNN -------------------------------------------------------------------------------------


@gradient("RNN")
@absent
def rnn(op: GradientOps, node: ir.Node, *dys: Gradient) -> Any:
    """h' = f(a), a = W x + R h + b: da = f'(a) dh', dh = R' da"""
    layer = RecurrentLayer(op, node, dys, states=1)
    return layer.gradients([_rnn(op, part) for part in layer.directions])


def _rnn(op: GradientOps, part: Direction) -> Any:
    (f,) = activations(op, part.node, part.index)
    a = part.gates()
    slope = part.live(f.slope(a, f(a)))

    def step(inner: GradientOps, dh: Any, dy: Any, slope: Any, rest: Any) -> Any:
        dh = inner.plus(dh, dy)
        da = inner.Mul(dh, slope)
        return _passed(inner, inner.MatMul(da, part.r), dh, rest), da

    given = [part.dy, slope, part.rest]
    dh, da = scan(op, part.dstates, given, step, from_end=not part.reverse)
    return part.gradients(da, da), [dh]


def _passed(op: GradientOps, dh: ir.Value, after: ir.Value, rest: Any) -> ir.Value:
    """dh, or the gradient of the next state after the end of the sequence."""
    return dh if rest is None else op.Add(dh, op.Mul(after, rest))


# -- GRU -------------------------------------------------------------------------------------


@gradient("GRU")
@absent
def gru(op: GradientOps, node: ir.Node, *dys: Gradient) -> Any:
    """h' = (1 - z) n + z h: dz = (h - n) dh', dn = (1 - z) dh', dh = z dh' + R' da"""
    layer = RecurrentLayer(op, node, dys, states=1)
    write = _gru_reset_after if attribute(node, "linear_before_reset") else _gru
    return layer.gradients([write(op, part) for part in layer.directions])


def _gru(op: GradientOps, part: Direction) -> Any:
    """n = g(Wn x + Rn (r h) + b): d(r h) = Rn' dan"""
    f, g = activations(op, part.node, part.index)
    (w_gates, w_new), (r_gates, r_new) = part.split(part.w, 0), part.split(part.r, 0)
    bias = part.bias()
    b_gates, b_new = (None, None) if bias is None else part.split(bias, 0)
    h = part.before
    az, ar = op.Split(part.affine(w_gates, r_gates, b_gates, h), num_outputs=2, axis=-1, outputs=2)
    z, r = f(az), f(ar)
    reset = op.Mul(r, h)
    an = part.affine(w_new, r_new, b_new, reset)
    n = g(an)
    slope_n = part.live(op.Mul(op.Sub(1.0, z), g.slope(an, n)))
    slope_z = part.live(op.Mul(op.Sub(h, n), f.slope(az, z)))
    slope_r = op.Mul(h, f.slope(ar, r))

    def step(inner: GradientOps, dh: Any, *given: Any) -> Any:
        dy, slope_n, slope_z, slope_r, r, kept = given
        dh = inner.plus(dh, dy)
        dn = inner.Mul(dh, slope_n)
        dreset = inner.MatMul(dn, r_new)
        dzr = inner.Concat(inner.Mul(dh, slope_z), inner.Mul(dreset, slope_r), axis=-1)
        back = inner.Sum(inner.Mul(dh, kept), inner.Mul(dreset, r), inner.MatMul(dzr, r_gates))
        return back, dzr, dn

    given = [part.dy, slope_n, slope_z, slope_r, r, part.live_or_one(z)]
    dh, dzr, dn = scan(op, part.dstates, given, step, from_end=not part.reverse)
    da = op.Concat(dzr, dn, axis=-1)
    dr = op.Concat(part.weight(dzr, h), part.weight(dn, reset), axis=0)
    return part.gradients(da, da, dr=dr), [dh]


def _gru_reset_after(op: GradientOps, part: Direction) -> Any:
    """n = g(Wn x + bw + r (Rn h + br)): the whole of dh = z dh' + R' (slopes dh') is one MatMul"""
    f, g = activations(op, part.node, part.index)
    gates = [op.Split(a, num_outputs=3, axis=-1, outputs=3) for a in part.two_gates()]
    (xz, xr, xn), (hz, hr, hn) = gates
    az, ar = op.Add(xz, hz), op.Add(xr, hr)
    z, r = f(az), f(ar)
    an = op.Add(xn, op.Mul(r, hn))
    n = g(an)
    slope_n = part.live(op.Mul(op.Sub(1.0, z), g.slope(an, n)))
    slope_z = part.live(op.Mul(op.Sub(part.before, n), f.slope(az, z)))
    slope_r = op.Mul(op.Mul(slope_n, hn), f.slope(ar, r))
    slopes = op.Concat(slope_z, slope_r, op.Mul(slope_n, r), axis=-1)

    def step(inner: GradientOps, dh: Any, dy: Any, slopes: Any, kept: Any) -> Any:
        dh = inner.plus(dh, dy)
        da = inner.Mul(inner.Concat(dh, dh, dh, axis=-1), slopes)
        back = inner.Add(inner.Mul(dh, kept), inner.MatMul(da, part.r))
        return back, da, inner.Identity(dh)

    given = [part.dy, slopes, part.live_or_one(z)]
    dh, da, dhs = scan(op, part.dstates, given, step, from_end=not part.reverse)
    dzr, _ = part.split(da, 2)
    dax = op.Concat(dzr, op.Mul(dhs, slope_n), axis=-1)
    return part.gradients(dax, da), [dh]


# -- LSTM ------------------------------------------------------------------------------------


@gradient("LSTM")
@absent
def lstm(op: GradientOps, node: ir.Node, *dys: Gradient) -> Any:
    """c' = f c + i g, h' = o h(c'): do = h dh', dc' += o h' dh', (di, df, dg) = (g, c, i) dc'

    i, f and o read c, c and c' too, through peepholes; f may be 1 - i (`input_forget`).
    """
    layer = RecurrentLayer(op, node, dys, states=2)
    return layer.gradients([_lstm(op, part) for part in layer.directions])


def _lstm(op: GradientOps, part: Direction) -> Any:
    slopes, to_cell, kept, before, after = _lstm_slopes(op, part)

    def step(inner: GradientOps, dh: Any, dc: Any, *given: Any) -> Any:
        dy, slopes, to_cell, kept, rest = given
        dh = inner.plus(dh, dy)
        dc = inner.Add(dc, inner.Mul(dh, to_cell))
        da = inner.Mul(inner.Concat(dc, dh, dc, dc, axis=-1), slopes)
        return _passed(inner, inner.MatMul(da, part.r), dh, rest), inner.Mul(dc, kept), da

    given = [part.dy, slopes, to_cell, kept, part.rest]
    dh, dc, da = scan(op, part.dstates, given, step, from_end=not part.reverse)
    dp = None
    if part.peepholes:
        di, do, df, _ = op.Split(da, num_outputs=4, axis=-1, outputs=4)
        cells = ((di, before), (do, after), (df, before))
        sums = [op.ReduceSum(op.Mul(d, c), [0, 1], keepdims=0) for d, c in cells]
        dp = op.Concat(*sums, axis=0)
    return part.gradients(da, da, dp=dp), [dh, dc]


def _lstm_slopes(op: GradientOps, part: Direction) -> Any:
    """The factors (dc', dh', dc', dc') -> da, dh' -> dc' and dc' -> dc; and the cells."""
    f_act, g_act, h_act = activations(op, part.node, part.index)
    ai, ao, af, ag = op.Split(part.gates(), num_outputs=4, axis=-1, outputs=4)
    pi, po, pf = part.peepholes or (None, None, None)
    g = g_act(ag)
    before, after = _cells(op, part, f_act, (ai, af, g))
    ai, af, ao = (
        _peeped(op, a, p, c) for a, p, c in ((ai, pi, before), (af, pf, before), (ao, po, after))
    )
    i, o, u = f_act(ai), f_act(ao), h_act(after)
    f = op.Sub(1.0, i) if _coupled(part) else f_act(af)
    slope_i, slope_o = f_act.slope(ai, i), op.Mul(u, f_act.slope(ao, o))
    slope_g = op.Mul(i, g_act.slope(ag, g))
    if _coupled(part):
        slope_i, slope_f = op.Mul(op.Sub(g, before), slope_i), op.zeros_like(slope_i)
    else:
        slope_i, slope_f = op.Mul(g, slope_i), op.Mul(before, f_act.slope(af, f))
    to_cell, kept = op.Mul(o, h_act.slope(after, u)), f
    if part.peepholes:
        to_cell = op.Add(to_cell, op.Mul(slope_o, po))
        kept = op.Sum(kept, op.Mul(slope_i, pi), op.Mul(slope_f, pf))
    slopes = part.live(op.Concat(slope_i, slope_o, slope_f, slope_g, axis=-1))
    return slopes, part.live(to_cell), part.live_or_one(kept), before, after


def _coupled(part: Direction) -> bool:
    return bool(attribute(part.node, "input_forget"))


def _peeped(op: GradientOps, a: ir.Value, p: Gradient, c: ir.Value) -> ir.Value:
    return a if p is None else op.Add(a, op.Mul(c, p))


def _cells(op: GradientOps, part: Direction, f_act: Activation, gates: Any) -> Any:
    """c before and after every step: c' = f c + i g, a Scan without matrix products."""
    ai, af, g = gates
    start = part.states[1]

    def written(op: GradientOps, c: Any, kept: Any, fresh: Any) -> Any:
        new = op.Add(op.Mul(kept, c), fresh)
        return new, op.Identity(new)

    def peeping(op: GradientOps, c: Any, ai: Any, af: Any, g: Any, rest: Any) -> Any:
        assert part.peepholes is not None
        pi, _, pf = part.peepholes
        act = f_act.inside(op)
        i = act(_peeped(op, ai, pi, c))
        f = op.Sub(1.0, i) if _coupled(part) else act(_peeped(op, af, pf, c))
        new = op.Add(op.Mul(f, c), op.Mul(i, g))
        if rest is not None:
            new = op.Add(new, op.Mul(op.Sub(c, new), rest))
        return new, op.Identity(new)

    step: Any = peeping
    given = [ai, af, g, part.rest]
    if not part.peepholes:
        i = f_act(ai)
        f = op.Sub(1.0, i) if _coupled(part) else f_act(af)
        given, step = [part.live_or_one(f), part.live(op.Mul(i, g))], written
    _, after = scan(op, [start], given, step, from_end=part.reverse)
    return joined(op, start, after, part.reverse), after
