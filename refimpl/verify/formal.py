"""What Coq has proved, for all shapes and values over any field: the names in proofs/, or why there is none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from .check import source
from .theorem import Result

# theorem: statements of proofs/*.v, each "room.name"
PROVED: dict[str, tuple[str, ...]] = {
    "quadratic_eq_sum": ("linear_attention.quadratic_eq_sum",),
    "recurrent_eq_sum": (
        "linear_attention.recurrent_eq_sum",
        "recurrence.linear_scan",
        "recurrence.linear_scan_output",
        "recurrence.linear_exact",
    ),
    "chunked_eq_sum": ("linear_attention.chunked_eq_sum",),
    "split_invariance": (
        "linear_attention.split_invariance",
        "linear_attention.split_defined",
        "linear_attention.split_state",
    ),
    "softmax_shifted_eq_sum": ("attention.softmax_shifted_eq_sum",),
    "kv_cache": ("recurrence.cache_scan", "recurrence.cache_final", "recurrence.cache_exact", "attention.kv_cache"),
    "rope_relative": (
        "rope.rope_orthogonal",
        "rope.R_add",
        "rope.R_tr",
        "rope.R_0",
        "rope.rope_relative",
        "rope.rope_difference",
    ),
    "rope_layouts": (
        "rope.interleaveK",
        "rope.deinterleaveK",
        "rope.rope_layouts",
        "rope.interleave_mxE",
        "rope.interleave_orthogonal",
    ),
    "state_monoid": (
        "linear_attention.shift_past0",
        "linear_attention.shift_pastD",
        "linear_attention.absorb_text_cat",
        "linear_attention.absorb_shift",
        "linear_attention.join_absorb",
        "linear_attention.join_assoc",
        "linear_attention.join_no_text",
        "linear_attention.no_text_join",
        "linear_attention.remove_join",
        "linear_attention.join_remove",
    ),
    "shift": ("linear_attention.shift_attend", "linear_attention.shift_accepts", "linear_attention.shift_split"),
    "causality": ("linear_attention.causality", "linear_attention.causality_sharp", "conversion.run_causal"),
    "iclca": (
        "conversion.run_cat",
        "conversion.run_shift",
        "conversion.defined_run_shift",
        "conversion.absorb_shift_all",
        "conversion.conversion_exact",
        "conversion.conversion_defined",
        "conversion.conversion_causal",
    ),
    "iclca_layers": ("conversion.attn_cat", "conversion.convert_layer_exact", "conversion.convert_layer_defined"),
    "iclca_prefix": ("conversion.conversion_prefix",),
    "iclca_bias": ("conversion.bias_formula", "conversion.bias_formula_rope"),
    "iclca_linear": ("conversion.iclca_linear",),
    "iclca_composition": (
        "conversion.absorb_cat",
        "conversion.convert_nil",
        "conversion.convert_cat",
        "conversion.convert_pieces",
    ),
    "iclca_removal": ("conversion.unconvert_convert", "conversion.convert_unconvert", "conversion.unconvert_convert1"),
    "iclca_strength": ("conversion.convert_strength1", "conversion.strength_exact", "conversion.strength_defined"),
    "iclca_join": ("conversion.join_layer", "witnesses.joining_one_layer"),
    "iclca_gpt2_small": ("conversion.conversion_exact",),
    "needs_causality": ("witnesses.needs_causality", "witnesses.one_layer_full_mask"),
    "needs_relative_positions": ("witnesses.needs_relative_positions", "witnesses.positions_that_go_on"),
    "needs_separation": (
        "witnesses.additive_separates",
        "witnesses.needs_separation",
        "witnesses.needs_separation_output",
    ),
    "no_change_of_weights": ("witnesses.no_change_of_weights", "witnesses.no_change_of_weights_output"),
    "no_projection_biases": ("witnesses.no_projection_biases", "witnesses.no_projection_biases_rank"),
    "joining_biases": (
        "witnesses.joining_biases_of_prompt",
        "witnesses.joining_biases",
        "witnesses.joining_one_layer",
        "witnesses.joining_needs_the_shift",
    ),
    "lifo_only": ("witnesses.lifo_only",),
    "rotation_covariance": (
        "feature_maps.rotation_covariance",
        "feature_maps.directional_covariant",
        "feature_maps.covariant_conversion",
        "feature_maps.covariant_defined",
    ),
    "feature_error": (
        "random_features.positive_unbiased",
        "random_features.positive_mse",
        "random_features.hyperbolic_unbiased",
        "random_features.hyperbolic_mse",
        "random_features.trigonometric_unbiased",
        "random_features.trigonometric_mse",
    ),
    "iclaa": (
        "attention.iclaa_causal",
        "attention.iclaa_exact",
        "attention.iclaa_error",
        "feature_maps.covariant_stack",
    ),
    "nystrom_exact": ("attention.landmarks_exact", "attention.iclaa_landmarks"),
    "cache_conversion": ("attention.kv_cache",),
    "recurrence_eq_sum": (
        "recurrence.after_scan",
        "recurrence.after_final",
        "recurrence.before_scan",
        "recurrence.before_final",
        "recurrence.rwkv_scan",
        "recurrence.rwkv_exact",
        "recurrence.rwkv7_scan",
        "recurrence.rwkv7_exact",
    ),
    "recurrence_split": (
        "recurrence.conversion_exact",
        "recurrence.layer_exact",
        "recurrence.rwkv_scan",
        "recurrence.rwkv_exact",
        "recurrence.rwkv7_scan",
        "recurrence.rwkv7_exact",
    ),
    "rwkv_state": (
        "recurrence.run_cat",
        "recurrence.conversion_exact",
        "recurrence.layer_exact",
        "recurrence.convert_cat",
        "recurrence.convert_nil",
    ),
    "dual_form": ("gradient.irie_dual_form", "gradient.irie_descent", "gradient.irie_lsq"),
    "von_oswald": (
        "von_oswald.von_oswald_prop1",
        "von_oswald.von_oswald_prediction",
        "von_oswald.stack_context",
        "von_oswald.von_oswald_deep",
    ),
    "von_oswald_model": ("von_oswald.von_oswald_deep", "von_oswald.von_oswald_biases"),
    "gd_plus_plus": ("von_oswald.gdpp_layer", "von_oswald.gdpp_gram", "von_oswald.gdpp_spectrum"),
    "token_map": ("von_oswald.von_oswald_prop2",),
    "pairing": ("von_oswald.pairing_layer", "von_oswald.von_oswald_prop3"),
    "implicit_finetuning": ("dual.dai_icl",),
    "momentum": ("dual.dai_momentum",),
    "ren_liu": ("dual.features_gd_step", "dual.ren_liu", "dual.features_rate_cancels", "dual.features_one_by_one"),
    "ren_liu_softmax": ("dual.ren_liu",),
    "ren_liu_variants": (
        "dual.features_weight_decay",
        "dual.regularised_by_decay",
        "dual.regularised_as_on_the_slide",
        "dual.augmented",
        "dual.negative_samples",
    ),
    "ren_liu_mlp": ("dual.features_map_behind",),
    "rank_one_patch": ("dual.rank_one_patch",),
    "query_among_keys": (
        "von_oswald.query_harmless",
        "von_oswald.query_own_term",
        "von_oswald.query_harms_from_W0",
        "von_oswald.query_harms_depth",
    ),
    "causal_layers": ("von_oswald.causal_is_not_descent",),
    "patch_is_for_one_token": ("dual.no_patch_for_two_tokens",),
}
# What of a theorem these do not say
IN_PART: dict[str, str] = {
    "rotation_covariance": "for all maps of ω·x, |x|² and |ω|; that those here are such maps is not in Coq",
    "feature_error": "for positive, hyperbolic and trigonometric features, of any normal law",
    "iclaa": "for any features that are given; the carried scale is not in Coq",
    "nystrom_exact": "by the inverse of the Gram matrix; the elimination is not in Coq",
    "cache_conversion": "for one layer",
    "rwkv_state": "for layers of any step and state; that RWKV's are such, and its own sum, is not in Coq",
    "von_oswald_model": "the query reads the biases; that it hides its key, as here, is not in Coq",
    "gd_plus_plus": "for W_0 = 0, in one head; here W_0 is any, in three",
    "pairing": "for all x first and then all y; here they come in turns",
    "ren_liu_mlp": "for the linear map that relu is at this query",
    "ren_liu_variants": "each by itself",
}
FLOATS = "it is about rounding; proofs/bounds.v has the bounds that such checks rest on"
NOT_PROVED: dict[str, str] = {
    "log_features": "it is about exp and cos; proofs/random_features.v has means and errors of such features",
    "taylor_kernel": "for another scaling it is feature_maps.taylor2_kernel",
    "carried_eq_sum": "logarithms and maxima are not modelled; that sums split is split_invariance",
    "wkv4_eq_sum": "RWKV-4's quotient is not modelled",
    "exact_probes": FLOATS,
    "iclca_probes": FLOATS,
    "iclca_error": "it is a measurement",
}
COMMAND = "make -C proofs audit"


def homes() -> tuple[Path, ...]:
    """Where the proofs may be: beside the package, in a clone; or where the command is run."""
    return Path(__file__).parents[2] / "proofs", Path("proofs").absolute()


def status() -> str:
    """Nothing, if the audit found the proofs in order, and they and the library are as they were then; else what is amiss."""
    needed = {f"{name.partition('.')[0]}.v" for names in PROVED.values() for name in names}
    for home in homes():
        try:
            found = json.loads((home / "_build" / "audited.json").read_text(encoding="utf-8"))
            rooms = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in home.glob("*.v")}
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and needed <= rooms.keys():
            same = found == found | rooms and found.get("refimpl") == source()
            return "" if same else f"proofs or library changed since {COMMAND}"
    return f"Coq was not run on this machine ({COMMAND})"


def formal(theorems: Iterable[str]) -> list[Result]:
    """A row for each theorem: PROVED, or IN PART, where Coq accepted it here; NOT CHECKED where it did not run; N/A where there is none."""
    missing, rows = status(), []
    for name in dict.fromkeys(theorems):
        if name not in PROVED:
            rows.append(Result(name, "Coq", "N/A", NOT_PROVED.get(name, "no proof yet")))
            continue
        part = f" in part ({IN_PART[name]})" if name in IN_PART else ""
        evidence = f"all shapes, all values{part}: {', '.join(PROVED[name])}"
        verdict = "NOT CHECKED" if missing else "IN PART" if part else "PROVED"
        rows.append(Result(name, "Coq", verdict, f"{evidence}; {missing}" if missing else evidence))
    return rows
