(* The rationals as a MathComp field that computes: Qc of Coq's library,      *)
(* fractions of binary integers in lowest terms.  Mirrors                     *)
(* refimpl/systems/rational.py (QQ).                                          *)
(*                                                                            *)
(*   Qc               the rationals, with every structure up to fieldType     *)
(*   frac a b         a / b, for integers a and b > 0                         *)
(*                                                                            *)
(* Equal numbers are one and the same element, so == decides equality.        *)
(* MathComp's x / 0 is 0, and so is Qc's.                                     *)
From Coq Require Import ZArith QArith Qcanon.
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Definition frac (a : Z) (b : positive) : Qc := Q2Qc (a # b).

(* Two rationals are equal if numerators and denominators are.                *)
Definition Qc_eqb (x y : Qc) : bool :=
  Z.eqb (Qnum x) (Qnum y) && Pos.eqb (Qden x) (Qden y).

Lemma Qc_eqP : Equality.axiom Qc_eqb.
Proof.
move=> x y; apply: (iffP andP) => [[/Z.eqb_eq n /Pos.eqb_eq d] | ->].
  by apply: Qc_is_canon; rewrite /Qeq n d.
by rewrite Z.eqb_refl Pos.eqb_refl.
Qed.

Canonical Qc_eqType := EqType Qc (EqMixin Qc_eqP).

(* A choice function, through the natural numbers.                            *)
Definition Qc_code (x : Qc) :=
  (Z.to_nat (Qnum x), Z.to_nat (- Qnum x), Pos.to_nat (Qden x)).
Definition Qc_decode (c : nat * nat * nat) :=
  frac (Z.of_nat c.1.1 - Z.of_nat c.1.2) (Pos.of_nat c.2).

Lemma Qc_codeK : cancel Qc_code Qc_decode.
Proof.
case=> -[a b] c; apply: Qc_is_canon; apply: Qeq_trans (Qred_correct _) _.
rewrite /Qc_code /= Pos2Nat.id; case: a {c} => [|a|a] //=;
  by rewrite positive_nat_Z ?Z.sub_0_r.
Qed.

Canonical Qc_choiceType := ChoiceType Qc (CanChoiceMixin Qc_codeK).

Canonical Qc_zmodType := ZmodType Qc
  (ZmodMixin Qcplus_assoc Qcplus_comm Qcplus_0_l
     (fun x => etrans (Qcplus_comm _ x) (Qcplus_opp_r x))).

Lemma Qc_one_neq0 : 1%Qc != 0%Qc. Proof. by []. Qed.

Canonical Qc_ringType := RingType Qc
  (ComRingMixin Qcmult_assoc Qcmult_comm Qcmult_1_l Qcmult_plus_distr_l
     Qc_one_neq0).
Canonical Qc_comRingType := ComRingType Qc Qcmult_comm.

Lemma Qc_mulV : GRing.Field.axiom Qcinv.
Proof. by move=> x /eqP; apply: Qcmult_inv_l. Qed.

Lemma Qc_inv0 : Qcinv 0%Qc = 0%Qc. Proof. exact: Qc_is_canon. Qed.

Definition Qc_unitMixin := FieldUnitMixin Qc_mulV Qc_inv0.
Canonical Qc_unitRingType := UnitRingType Qc Qc_unitMixin.
Canonical Qc_comUnitRingType := [comUnitRingType of Qc].

Lemma Qc_fieldMixin : GRing.Field.mixin_of Qc_unitRingType. Proof. by []. Qed.

Canonical Qc_idomainType := IdomainType Qc (FieldIdomainMixin Qc_fieldMixin).
Canonical Qc_fieldType := FieldType Qc Qc_fieldMixin.
