(* What cannot be done: ICLCA needs its assumptions, and nothing less than    *)
(* its biases will do.  Mirrors refimpl/verify/theorems/witnesses.py.         *)
(*                                                                            *)
(*   F                any field; H_2 says where 1 + 1 must not be 0           *)
(*   prompt, X        texts: a token is a row                                 *)
(*   prompt_state     W_K^T X'^T X' W_V, what a prompt X' leaves in the state *)
(*   (1, x, y, z)     the tokens of the adder: layer 1 puts out the sums y of *)
(*                    x, layer 2 the sums z of y^2; no denominators           *)
(*   text x           the tokens (1, x, 0, 0)                                 *)
(*   adder_1 R, adder_2 R                                                     *)
(*                    adder(system, 1), adder(system, 2), with RoPE R         *)
(*   plain            no positions                                            *)
(*   quarter          RoPE that turns by 90 degrees at each position          *)
(*   b_KV             biases(model) of adder_2: what layer 1 and layer 2 hold *)
(*                    (b_D is never read, since nothing is divided by it)     *)
(*   b_of             b_KV of the bare model, converted                       *)
(*                                                                            *)
(* "Cannot" is said as: for no biases, no weights, no function at all.  Where *)
(* the program shows one instance, in numbers, the theorem here says what the *)
(* instance is an instance of.  The numbers in the proofs are those of the    *)
(* program, but for other inputs in [needs_causality] and [needs_separation], *)
(* with which 1 + 1 != 0 is all that is asked of F.                           *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention rope conversion.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* ------------------------------------------------------------------------- *)
(* Other weights, and biases of the projections: one layer, phi = identity,   *)
(* no denominators, no positions.                                             *)
Section Weights.
Variables (F : fieldType) (d r m M : nat).
Variables (W_Q W_K : 'M[F]_(d, r)) (W_V : 'M[F]_(d, m)) (prompt : 'M[F]_(M, d)).

Definition prompt_state := W_K^T *m prompt^T *m prompt *m W_V.

(* No weights in place of W_K and W_V leave in the state what a prompt does,  *)
(* even if only inputs of one length n are asked for.                         *)
Theorem no_change_of_weights n (H_past : prompt_state != 0) :
  ~ exists W_1 W_2, forall X : 'M_(n, d),
      W_1^T *m X^T *m X *m W_2 = W_K^T *m X^T *m X *m W_V + prompt_state.
Proof.
case=> W_1 [W_2 /(_ 0)] /eqP.
by rewrite !mulmx0 !mul0mx add0r eq_sym (negPf H_past).
Qed.

(* The output of the layer with weights W_q, W_k, W_v.                        *)
Definition layer_output n r' (W_q W_k : 'M[F]_(d, r')) (W_v : 'M[F]_(d, m))
    (X : 'M[F]_(n, d)) : 'M[F]_(n, m) :=
  linear_attention (X *m W_q) (X *m W_k) (X *m W_q) (X *m W_k) (X *m W_v)
    0 0 0 false.

(* One token: degree 3 in x, whatever the weights.                            *)
Lemma layer_output_one r' (W_q W_k : 'M[F]_(d, r')) W_v (x : 'rV[F]_d) :
  layer_output W_q W_k W_v x = x *m W_q *m (W_k^T *m x^T *m x *m W_v).
Proof.
apply/row_matrixP => t; rewrite rowK /num /S_at !ord1 add0r big_mkcond.
by rewrite big_ord1 /= !row_id trmx_mul !mulmxA.
Qed.

(* A prompt adds a part of degree 1.                                          *)
Lemma layer_output_prompted n (X : 'M[F]_(n, d)) :
  dsubmx (layer_output W_Q W_K W_V (col_mx prompt X)) =
  layer_output W_Q W_K W_V X + X *m W_Q *m prompt_state.
Proof.
rewrite /layer_output !mul_col_mx split_invariance // col_mxKd.
apply/row_matrixP => t; rewrite linearD /= !rowK /num /S_at sum_outer !add0r.
rewrite [_^T *m _ + _]addrC mulmxDr trmx_mul; congr (_ + _).
by rewrite /prompt_state !row_mul !mulmxA.
Qed.

Lemma layer_output_cubic r' (W_q W_k : 'M[F]_(d, r')) W_v c (x : 'rV[F]_d) :
  layer_output W_q W_k W_v (c *: x) = c ^+ 3 *: layer_output W_q W_k W_v x.
Proof.
rewrite !layer_output_one [(c *: x)^T]linearZ /=.
rewrite -!(scalemxAl, scalemxAr) !scalerA.
by rewrite !exprS expr0 mulr1 mulrA.
Qed.

(* No weights in place of W_Q, W_K and W_V, of any inner width, put out what  *)
(* the layer puts out after a prompt, even if only inputs of one token are    *)
(* asked for.  In a field where every c has c^3 = c, of 2 or 3 elements,      *)
(* degrees 3 and 1 cannot be told apart.                                      *)
Theorem no_change_of_weights_output (c : F) (H_c : c ^+ 3 != c)
    (H_past : W_Q *m prompt_state != 0) :
  ~ exists r' (W_0 W_1 : 'M_(d, r')) (W_2 : 'M_(d, m)),
      forall x : 'rV_d, layer_output W_0 W_1 W_2 x =
        dsubmx (layer_output W_Q W_K W_V (col_mx prompt x)).
Proof.
case=> r' [W_0 [W_1 [W_2 H]]]; case/negP: H_past; apply/eqP/row_matrixP => i.
have {}H x := etrans (H x) (layer_output_prompted x).
rewrite rowE row0 mulmxA; set x := delta_mx 0 i.
have := H (c *: x); rewrite !layer_output_cubic H scalerDr => /addrI.
rewrite -!scalemxAl => /eqP; rewrite -subr_eq0 -scalerBl scaler_eq0.
by rewrite subr_eq0 (negPf H_c) => /eqP.
Qed.

(* The hypothesis is sharp: where it fails, the prompt is seen in no output,  *)
(* and the weights may stay as they are.                                      *)
Theorem no_change_needed n (H_past : W_Q *m prompt_state = 0) (X : 'M_(n, d)) :
  dsubmx (layer_output W_Q W_K W_V (col_mx prompt X)) =
  layer_output W_Q W_K W_V X.
Proof. by rewrite layer_output_prompted -mulmxA H_past mulmx0 addr0. Qed.

(* W^T x + b, for every token x.                                              *)
Definition biased n e (W : 'M[F]_(d, e)) (b : 'rV[F]_e) (X : 'M[F]_(n, d)) :=
  X *m W + const_mx 1 *m b.

(* n tokens 0 leave n b_K^T b_V in the state.                                 *)
Lemma biased_state n (W_1 : 'M_(d, r)) (W_2 : 'M_(d, m)) b_K b_V :
  (biased W_1 b_K (0 : 'M_(n, d)))^T *m biased W_2 b_V 0 =
  n%:R *: (b_K^T *m b_V).
Proof.
rewrite /biased !mul0mx !add0r trmx_mul trmx_const -mulmxA.
rewrite [_ *m (_ *m b_V)]mulmxA.
rewrite (_ : const_mx 1 *m const_mx 1 = n%:R%:M) ?mul_scalar_mx ?scalemxAr //.
apply/matrixP => i j; rewrite !mxE !ord1 eqxx.
under eq_bigr do rewrite !mxE mulr1.
by rewrite sumr_const card_ord.
Qed.

(* No b_K and b_V, with any W_1 and W_2, leave in the state what a prompt     *)
(* does: what they leave grows with n, and the prompt does not.  (Inputs of   *)
(* no tokens are not needed for that.)                                        *)
Theorem no_projection_biases (H_past : prompt_state != 0) :
  ~ exists W_1 W_2 b_K b_V, forall n (X : 'M_(n.+1, d)),
      (biased W_1 b_K X)^T *m biased W_2 b_V X =
      (X *m W_K)^T *m (X *m W_V) + prompt_state.
Proof.
case=> [W_1 [W_2 [b_K [b_V H]]]]; case/negP: H_past; apply/eqP.
have {}H n : n.+1%:R *: (b_K^T *m b_V) = prompt_state.
  by rewrite -(biased_state _ W_1 W_2) H !mul0mx mulmx0 add0r.
have A1 : b_K^T *m b_V = prompt_state by have := H 0%N; rewrite scale1r.
have := H 1%N; rewrite A1 scaler_nat mulr2n -{3}[prompt_state]addr0.
by move/addrI.
Qed.

(* Nor for inputs of a single length n, if the prompt leaves more than rank 1.*)
Theorem no_projection_biases_rank n (H_rank : (1 < \rank prompt_state)%N) :
  ~ exists W_1 W_2 b_K b_V, forall X : 'M_(n, d),
      (biased W_1 b_K X)^T *m biased W_2 b_V X =
      (X *m W_K)^T *m (X *m W_V) + prompt_state.
Proof.
case=> [W_1 [W_2 [b_K [b_V /(_ 0)]]]].
rewrite biased_state !mul0mx mulmx0 add0r => E; move: H_rank.
rewrite -E scalemxAl ltnNge => /negP[]; apply: leq_trans (mxrankM_maxr _ _) _.
exact: rank_leq_row.
Qed.
End Weights.

(* The prompts of the program, for which the hypotheses hold: (1, 2), and     *)
(* (1, 0), (0, 1), with W_Q = W_K = W_V = 1; and c = 2.                       *)
Section WeightsExamples.
Variable F : fieldType.

Example past_neq0 :
  prompt_state 1%:M 1%:M (\row_(j < 2) [:: 1; 2%:R]`_j : 'rV[F]_2) != 0.
Proof.
rewrite /prompt_state trmx1 mul1mx mulmx1; apply/eqP => /matrixP /(_ 0 0) /eqP.
by rewrite !mxE big_ord1 !mxE mulr1 oner_eq0.
Qed.

Example past_shows : (1%:M : 'M_2) *m
  prompt_state 1%:M 1%:M (\row_(j < 2) [:: 1; 2%:R]`_j : 'rV[F]_2) != 0.
Proof. by rewrite mul1mx past_neq0. Qed.

Example two_cubed (H_2 : 2%:R != 0 :> F) (H_3 : 3%:R != 0 :> F) :
  2%:R ^+ 3 != 2%:R :> F.
Proof. by rewrite -subr_eq0 -natrX -natrB // (natrM _ 2 3) mulf_neq0. Qed.

Example past_rank : \rank (prompt_state 1%:M 1%:M (1%:M : 'M[F]_2)) = 2%N.
Proof. by rewrite /prompt_state !trmx1 !mul1mx mxrank1. Qed.
End WeightsExamples.

(* ------------------------------------------------------------------------- *)
(* A denominator that is not a sum over tokens.  k holds the features, one    *)
(* for each token.                                                            *)
Section Separation.
Variable F : fieldType.
Hypothesis H_2 : 2%:R != 0 :> F.

Definition additive n (k : 'cV[F]_n) := \sum_s k s 0.
Definition squared n (k : 'cV[F]_n) := additive k ^+ 2.

(* A sum has its b_D for every prompt A: the sum over A.                      *)
Theorem additive_separates M n (A : 'cV_M) (B : 'cV_n) :
  additive (col_mx A B) = additive B + additive A.
Proof.
rewrite /additive big_split_ord addrC /=.
by congr (_ + _); apply: eq_bigr => s _; rewrite ?col_mxEu ?col_mxEd.
Qed.

Lemma additive_one b : additive (const_mx b : 'cV_1) = b.
Proof. by rewrite /additive big_ord1 mxE. Qed.

(* For the square of a sum, no prompt that counts has a b_D, even if only     *)
(* inputs of one token are asked for.                                         *)
Theorem needs_separation M (A : 'cV_M) (H_A : additive A != 0) :
  ~ exists b_D, forall B : 'cV_1, squared (col_mx A B) = squared B + b_D.
Proof.
case=> b_D H; case/negP: H_A.
have {}H b : b ^+ 2 + b * additive A *+ 2 + additive A ^+ 2 = b ^+ 2 + b_D.
  by rewrite -sqrrD -{1 2}[b]additive_one -H /squared additive_separates.
have := H 0; rewrite expr0n mul0r mul0rn !add0r => E; have := H 1.
rewrite E -addrA => /addrI /eqP; rewrite -subr_eq0 addrK mul1r -mulr_natr.
by rewrite mulf_eq0 (negPf H_2) orbF.
Qed.

(* The numerator, with values v = k.                                          *)
Definition attended n (k : 'cV[F]_n) := \sum_s k s 0 * k s 0.

(* Nor is there a pair b_KV, b_D that gives the output, their quotient, for   *)
(* every input of one token for which it is defined.  MathComp's x / 0 is 0,  *)
(* and no pair is saved by that.                                              *)
Theorem needs_separation_output a (H_a : a != 0) (A := const_mx a : 'cV_1) :
  ~ exists b_KV b_D, forall B : 'cV_1, squared (col_mx A B) != 0 ->
      (attended B + b_KV) / (squared B + b_D) =
      attended (col_mx A B) / squared (col_mx A B).
Proof.
case=> b_KV [b_D H]; have {}H b : b + a != 0 ->
    (b ^+ 2 + b_KV) / (b ^+ 2 + b_D) = (b ^+ 2 + a ^+ 2) / (b + a) ^+ 2.
  have := H (const_mx b).
  rewrite /squared additive_separates !additive_one expf_eq0 /=.
  suff -> : attended (col_mx A (const_mx b : 'cV_1)) = b ^+ 2 + a ^+ 2.
    by rewrite /attended big_ord1 !mxE.
  by rewrite /attended big_split_ord !big_ord1 /= col_mxEu col_mxEd !mxE addrC.
have := H 0; rewrite expr0n /= !add0r divff ?expf_neq0 // => /(_ H_a) E.
have d0 : b_D != 0.
  apply: contraPneq E => ->; rewrite invr0 mulr0 => /esym/eqP.
  by rewrite oner_eq0.
have {}E : b_KV = b_D by move/(congr1 ( *%R^~ b_D)): E; rewrite divfK // mul1r.
have aa : a + a != 0 by rewrite -mulr2n -mulr_natr mulf_neq0.
have := H a aa; rewrite E.
have -> : (a ^+ 2 + a ^+ 2) / (a + a) ^+ 2 = 2%:R^-1.
  have two x : x + x = 2%:R * x :> F by rewrite mulr_natl mulr2n.
  rewrite !two exprMn invfM mulrACA divff ?expf_neq0 // mulr1.
  by rewrite expr2 invfM mulrA divff // mul1r.
have [-> | n0] := eqVneq (a ^+ 2 + b_D) 0.
  by rewrite mul0r => /esym/eqP; rewrite invr_eq0 (negPf H_2).
rewrite divff // => /(congr1 ( *%R 2%:R)); rewrite mulr1 divff // => /eqP.
by rewrite -subr_eq0 mulr2n addrK oner_eq0.
Qed.
End Separation.

(* ------------------------------------------------------------------------- *)
(* Layers that add.                                                           *)
Section Adder.
Variable F : fieldType.

(* The bare model carries no prompt.                                          *)
Fixpoint no_biases d e (T : transformer F d e) : biases T :=
  match T with
  | Stop _ => tt
  | Block _ _ _ _ next => (no_bias _, no_biases next)
  end.

(* The columns of a token (1, x, y, z).                                       *)
Definition at_1 : 'I_4 := @Ordinal 4 0 isT.
Definition at_x : 'I_4 := @Ordinal 4 1 isT.
Definition at_y : 'I_4 := @Ordinal 4 2 isT.
Definition at_z : 'I_4 := @Ordinal 4 3 isT.

Definition tokens n (x y z : 'cV[F]_n) : 'M[F]_(n, 4) :=
  \matrix_(t, j) [:: 1; x t 0; y t 0; z t 0]`_j.

Definition text n (x : 'cV[F]_n) := tokens x 0 0.

(* q = 1, k and v two entries of the token, and the output is added to a      *)
(* third.                                                                     *)
Definition adding r (R : rotation F r.+1) (key val out : 'I_4) :=
  @Layer F 4 4 1 1 r.+1 1 id
    (fun _ x => x 0 at_1 *: delta_mx 0 0) (fun _ x => x 0 key *: delta_mx 0 0)
    (fun _ x => (x 0 val)%:M) R R false
    (fun x o => x + o 0 0 *: delta_mx 0 out).

Definition adder_1 r (R : rotation F r.+1) : transformer F 4 4 :=
  Block (adding R at_1 at_x at_y) (Stop F 4).

Definition adder_2 r (R : rotation F r.+1) : transformer F 4 4 :=
  Block (adding R at_1 at_x at_y)
    (Block (adding R at_y at_y at_z) (Stop F 4)).

Definition plain := no_rotation F 1.

(* What the layers make of texts, in closed form.                             *)
Definition total n (x : 'cV[F]_n) := \sum_s x s 0.
Definition sums P beta n (x : 'cV[F]_n) : 'cV[F]_n :=
  \col_t (beta + \sum_(s < n | seen P t s) x s 0).
Definition squares n (x : 'cV[F]_n) : 'cV[F]_n := \col_t x t 0 ^+ 2.

Section Layer.
Variables (key val out : 'I_4).
Let l := adding plain key val out.
Variables (b : layer_biases l) (p : int) (P n : nat) (X : 'M[F]_(n, 4)).
Let beta := (b 0).1 0 0.

Lemma attentionE i t : attention b p P X i t 0 =
  X t at_1 * (beta + \sum_(s < n | seen P t s) X s key * X s val).
Proof.
rewrite /attention /= !turned_no mxE /num /S_at mxE big_ord1 !ord1.
rewrite !mxE eqxx mulr1; congr (_ * (_ + _)); rewrite summxE.
by apply: eq_bigr => s _; rewrite mxE big_ord1 !mxE !eqxx !mulr1.
Qed.

Lemma run_adding t j : run_layer b p P X t j =
  X t j + X t at_1 * (beta + \sum_(s < n | seen P t s) X s key * X s val)
          * (j == out)%:R.
Proof. by rewrite -(attentionE 0) !mxE. Qed.

Lemma absorb_adding : (absorb_layer b p X 0).1 0 0 =
  beta + \sum_(s < n) X s key * X s val.
Proof.
rewrite ffunE /= turned_no mxE summxE; congr (_ + _); apply: eq_bigr => s _.
by rewrite mxE big_ord1 !mxE !eqxx !mulr1.
Qed.
End Layer.

(* Layer 1 fills in y, layer 2 fills in z.                                    *)
Lemma run_y (b : layer_biases (adding plain at_1 at_x at_y)) p P n
    (x z : 'cV[F]_n) :
  run_layer b p P (tokens x 0 z) = tokens x (sums P ((b 0).1 0 0) x) z.
Proof.
apply/matrixP => t j; rewrite run_adding !mxE mul1r.
under eq_bigr do rewrite !mxE mul1r.
by case: j => [[|[|[|[|//]]]] lt]; rewrite /= ?mulr0 ?addr0 ?mulr1 ?add0r.
Qed.

Lemma run_z (b : layer_biases (adding plain at_y at_y at_z)) p P n
    (x y : 'cV[F]_n) :
  run_layer b p P (tokens x y 0) =
  tokens x y (sums P ((b 0).1 0 0) (squares y)).
Proof.
apply/matrixP => t j; rewrite run_adding !mxE mul1r.
under eq_bigr do rewrite !mxE; under [in RHS]eq_bigr do rewrite mxE.
by case: j => [[|[|[|[|//]]]] lt]; rewrite /= ?mulr0 ?addr0 ?mulr1 ?add0r.
Qed.

Definition b_KV (b : biases (adder_2 plain)) : F * F :=
  ((b.1 0).1 0 0, (b.2.1 0).1 0 0).

Lemma run_adder (b : biases (adder_2 plain)) p P n (x : 'cV[F]_n)
    (y := sums P (b_KV b).1 x) :
  run p P b (text x) = tokens x y (sums P (b_KV b).2 (squares y)).
Proof. by rewrite /= run_y run_z. Qed.

Lemma absorb_adder (b : biases (adder_2 plain)) p P n (x : 'cV[F]_n) :
  b_KV (absorb p P b (text x)) =
  ((b_KV b).1 + total x,
   (b_KV b).2 + total (squares (sums P (b_KV b).1 x))).
Proof.
rewrite /b_KV /= run_y !absorb_adding; congr (_ + _, _ + _).
  by apply: eq_bigr => s _; rewrite !mxE mul1r.
by apply: eq_bigr => s _; rewrite !mxE.
Qed.

Lemma b_KV_shift k (b : biases (adder_2 plain)) : b_KV (shift_all k b) = b_KV b.
Proof. by rewrite /b_KV /= !ffunE /= !mul1mx. Qed.

(* A prompt becomes the biases sum x and sum y^2.                             *)
Lemma convert_adder (b : biases (adder_2 plain)) p P n (x : 'cV[F]_n) :
  b_KV (convert p P b (text x)) =
  ((b_KV b).1 + total x,
   (b_KV b).2 + total (squares (sums P (b_KV b).1 x))).
Proof. by rewrite b_KV_shift absorb_adder. Qed.

(* One text after another: the second is read with the first in sight.        *)
Lemma text_cat M n (x : 'cV[F]_M) (y : 'cV[F]_n) :
  col_mx (text x) (text y) = text (col_mx x y).
Proof.
apply/matrixP => t j; case: (split_ordP t) => {}t ->.
  by rewrite col_mxEu [LHS]mxE [RHS]mxE col_mxEu !mxE.
by rewrite col_mxEd [LHS]mxE [RHS]mxE col_mxEd !mxE.
Qed.

Lemma total_cat M n (x : 'cV[F]_M) (y : 'cV[F]_n) :
  total (col_mx x y) = total x + total y.
Proof.
rewrite /total big_split_ord /=.
by congr (_ + _); apply: eq_bigr => s _; rewrite ?col_mxEu ?col_mxEd.
Qed.

Lemma sums_cat beta M n (x : 'cV[F]_M) (y : 'cV[F]_n) :
  sums 0 beta (col_mx x y) = col_mx (sums 0 beta x) (sums 0 (beta + total x) y).
Proof.
apply/colP => t; rewrite mxE big_split_ord /=; case: (split_ordP t) => {}t ->.
  rewrite col_mxEu mxE [X in _ + (_ + X)]big_pred0 ?addr0.
    by under eq_bigr do rewrite col_mxEu.
  by move=> s; rewrite seen_AB.
rewrite col_mxEd mxE addrA; congr (_ + _ + _).
  by apply: eq_big => s; rewrite ?seen_BA // => _; rewrite col_mxEu.
by apply: eq_big => s; rewrite ?seen_BB // => _; rewrite col_mxEd.
Qed.

Lemma squares_cat M n (x : 'cV[F]_M) (y : 'cV[F]_n) :
  squares (col_mx x y) = col_mx (squares x) (squares y).
Proof.
by apply/colP => t; rewrite !mxE; case: splitP => s _; rewrite mxE.
Qed.

Lemma sums_full beta n (x : 'cV[F]_n) :
  sums n beta x = const_mx (beta + total x).
Proof.
apply/colP => t; rewrite !mxE; congr (_ + _); apply: eq_bigl => s.
by rewrite /seen leq_max ltn_ord orbT.
Qed.

Lemma total_const n c : total (const_mx c : 'cV[F]_n) = c *+ n.
Proof.
rewrite /total; under eq_bigr do rewrite mxE.
by rewrite sumr_const card_ord.
Qed.

Lemma squares_const n c : squares (const_mx c : 'cV[F]_n) = const_mx (c ^+ 2).
Proof. by apply/colP => t; rewrite !mxE. Qed.

(* Two tokens, of integers.                                                   *)
Definition two (a b : int) : 'cV[F]_2 := \col_i ([:: a; b]`_i)%:~R.

Lemma total_two a b : total (two a b) = (a + b)%:~R.
Proof. by rewrite /total !big_ord_recl big_ord0 !mxE addr0 rmorphD. Qed.

Lemma total_squares_two (beta a b : int) :
  total (squares (sums 0 beta%:~R (two a b))) =
  ((beta + a) ^+ 2 + (beta + (a + b)) ^+ 2)%:~R.
Proof.
rewrite /total !big_ord_recl big_ord0 addr0 !mxE rmorphD !rmorphX !rmorphD.
rewrite ![\sum_(s < 2 | _) _]big_mkcond !big_ord_recl !big_ord0 !mxE /=.
by rewrite !addr0.
Qed.

Lemma b_KV_no : b_KV (no_biases _) = (0, 0).
Proof. by rewrite /b_KV /= !ffunE !mxE. Qed.

Definition b_of n (X : 'M[F]_(n, 4)) := b_KV (convert 0 0 (no_biases _) X).

Lemma b_of_two a b : b_of (text (two a b)) =
  ((a + b)%:~R, (a ^+ 2 + (a + b) ^+ 2)%:~R).
Proof.
rewrite /b_of convert_adder b_KV_no /= !add0r total_two.
by rewrite (total_squares_two 0) !add0r.
Qed.

Lemma b_of_two_two a b c d (s := a + b) :
  b_of (col_mx (text (two a b)) (text (two c d))) =
  ((s + (c + d))%:~R,
   (a ^+ 2 + s ^+ 2 + ((s + c) ^+ 2 + (s + (c + d)) ^+ 2))%:~R).
Proof.
rewrite /b_of text_cat convert_adder b_KV_no /= !add0r total_cat sums_cat.
rewrite squares_cat total_cat !total_two add0r (total_squares_two 0).
by rewrite total_squares_two !add0r -!rmorphD.
Qed.

Section Two.
Hypothesis H_2 : 2%:R != 0 :> F.

Lemma eight : 8%:R != 0 :> F.
Proof. by rewrite (natrX _ 2 3) expf_neq0. Qed.

(* In two layers, the biases of P1 P2 are no function of the biases of P1 and *)
(* of P2: not even if P1 itself is known, and all prompts are texts of two    *)
(* tokens.                                                                    *)
(* Alone, the y of (1, 0) are (1, 1) and those of (-1, 2) are (-1, 1), with   *)
(* the same sum of squares; after (1, 1) they are (3, 3) and (1, 3).          *)
Theorem joining_biases_of_prompt : ~ exists f : 'cV[F]_2 -> F * F -> F * F,
  forall P1 P2 : 'cV_2,
    b_of (col_mx (text P1) (text P2)) = f P1 (b_of (text P2)).
Proof.
case=> f H; have := H (two 1 1) (two 1 0).
have := H (two 1 1) (two (-1) 2).
rewrite !b_of_two_two !b_of_two.
move=> <- [] /eqP; rewrite -subr_eq0 -rmorphB; apply/negP; exact: eight.
Qed.

Corollary joining_biases : ~ exists f : F * F -> F * F -> F * F,
  forall P1 P2 : 'cV_2,
    b_of (col_mx (text P1) (text P2)) = f (b_of (text P1)) (b_of (text P2)).
Proof.
case=> f H; apply: joining_biases_of_prompt.
by exists (fun P1 => f (b_of (text P1))).
Qed.

(* P1 cannot be taken out from under P2: in two layers, the biases of P2 are  *)
(* no function of P1 and of the biases of P1 P2.  After (1, 0), the y of      *)
(* (1, 1) are (2, 3) and those of (-3, 5) are (-2, 3), with the same sum of   *)
(* squares; alone they are (1, 2) and (-3, 2).                                *)
Theorem lifo_only : ~ exists f : 'cV[F]_2 -> F * F -> F * F,
  forall P1 P2 : 'cV_2,
    b_of (text P2) = f P1 (b_of (col_mx (text P1) (text P2))).
Proof.
case=> f H; have := H (two 1 0) (two (-3) 5).
have := H (two 1 0) (two 1 1).
rewrite !b_of_two_two !b_of_two.
move=> <- [] /eqP; rewrite -subr_eq0 -rmorphB; apply/negP; exact: eight.
Qed.

(* If prompt tokens see the input, under a full mask, no biases of the two    *)
(* layers do what the prompt (1, 1) does, even if only inputs of one token    *)
(* are asked for.                                                             *)
Theorem needs_causality (prompt := text (two 1 1)) :
  ~ exists b : biases (adder_2 plain), forall x : 'cV[F]_1,
      run 0 1 b (text x) =
      dsubmx (run 0 (2 + 1) (no_biases (adder_2 plain))
                (col_mx prompt (text x))).
Proof.
case=> b H; pose beta := b_KV b.
have {}H (x : F) : beta.1 + x = 2%:R + x /\
    beta.2 + (beta.1 + x) ^+ 2 = (2%:R + x) ^+ 2 *+ 3.
  have /matrixP E := H (const_mx x); move: (E 0 at_y) (E 0 at_z).
  rewrite /prompt text_cat !run_adder !sums_full !squares_const.
  by rewrite !total_const total_cat total_two total_const b_KV_no !mxE !add0r.
have [/addIr b1 b2] := H (- 2%:R); have [_ b2'] := H (- 1); case/negP: H_2.
rewrite b1 subrr expr0n mul0rn addr0 in b2.
rewrite b1 b2 add0r (_ : 2%:R - 1 = 1) ?expr1n in b2'; last first.
  by rewrite mulr2n addrK.
by apply/eqP/(addrI 1); rewrite addr0 -mulrS.
Qed.
End Two.

Lemma run_adder_1 (b : biases (adder_1 plain)) p P n (x : 'cV[F]_n) :
  run p P b (text x) = tokens x (sums P ((b.1 0).1 0 0) x) 0.
Proof. by rewrite /= run_y. Qed.

(* In one layer there are such biases, under a full mask too.                 *)
Theorem one_layer_full_mask M n (a : 'cV[F]_M) (x : 'cV[F]_n)
    (b := no_biases (adder_1 plain)) :
  dsubmx (run 0 (M + n) b (col_mx (text a) (text x))) =
  run 0 n (convert 0 M b (text a)) (text x).
Proof.
have beta : ((convert 0 M b (text a)).1 0).1 0 0 = total a.
  rewrite /convert /= ffunE /= mul1mx absorb_adding ffunE mxE add0r.
  by apply: eq_bigr => s _; rewrite !mxE mul1r.
rewrite text_cat !run_adder_1 beta !sums_full total_cat ffunE mxE add0r.
apply/matrixP => t j; rewrite mxE [LHS]mxE [RHS]mxE col_mxEd.
by rewrite !mxE.
Qed.

(* Absolute positions p, p + 1, ... are added to x.                           *)
Definition positions p n : 'cV[F]_n := \col_t (p + t)%:R.
Definition placed p n (X : 'M[F]_(n, 4)) : 'M[F]_(n, 4) :=
  \matrix_(t, j) (X t j + (j == at_x)%:R * positions p n t 0).

Lemma placed_text p n (x : 'cV[F]_n) :
  placed p (text x) = text (x + positions p n).
Proof.
apply/matrixP => t j; rewrite !mxE.
by case: j => [[|[|[|[|//]]]] lt]; rewrite /= ?mul0r ?mul1r ?addr0.
Qed.

Lemma positions_cat p M n :
  positions p (M + n) = col_mx (positions p M) (positions (p + M) n).
Proof.
apply/colP => t; rewrite mxE; case: (split_ordP t) => {}t ->.
  by rewrite col_mxEu mxE.
by rewrite col_mxEd mxE /= addnA.
Qed.

Lemma tokens_y n (x y z : 'cV[F]_n) : col at_y (tokens x y z) = y.
Proof. by apply/colP => t; rewrite !mxE. Qed.

Lemma tokens_y_of_B M n (x z : 'cV[F]_(M + n)) (a : 'cV_M) (y : 'cV_n) :
  col at_y (dsubmx (tokens x (col_mx a y) z)) = y.
Proof. by apply/colP => t; rewrite 3!mxE col_mxEd. Qed.

Lemma placed_cat p M n (A : 'M[F]_(M, 4)) (X : 'M[F]_(n, 4)) :
  placed p (col_mx A X) = col_mx (placed p A) (placed (p + M) X).
Proof.
apply/matrixP => t j; rewrite mxE positions_cat; case: (split_ordP t) => {}t ->.
  by rewrite !col_mxEu [RHS]mxE.
by rewrite !col_mxEd [RHS]mxE.
Qed.

(* If positions go on where the prompt ended, conversion is exact, for every  *)
(* transformer.                                                               *)
Theorem positions_that_go_on e (T : transformer F 4 e) (b : biases T) M n
    (prompt : 'M_(M, 4)) (X : 'M_(n, 4)) :
  dsubmx (run 0 0 b (placed 0 (col_mx prompt X))) =
  run 0 0 (convert 0 0 b (placed 0 prompt)) (placed M X).
Proof. by rewrite placed_cat conversion_causal. Qed.

(* If positions begin at 0 again after a prompt of M tokens, no bias of the   *)
(* one layer gives the y of all inputs of two tokens; M must not be 0 in F.   *)
Theorem needs_relative_positions M (prompt : 'cV[F]_M) (H_M : M%:R != 0 :> F) :
  ~ exists b : biases (adder_1 plain), forall x : 'cV[F]_2,
      col at_y (run 0 0 b (placed 0 (text x))) =
      col at_y (dsubmx (run 0 0 (no_biases (adder_1 plain))
                          (placed 0 (col_mx (text prompt) (text x))))).
Proof.
case=> b /(_ 0) H; case/negP: H_M; apply/eqP; move: H.
rewrite text_cat !placed_text positions_cat !add0r add_col_mx !run_adder_1.
rewrite ffunE !mxE sums_cat tokens_y tokens_y_of_B add0r add0n => /colP H.
have := H 1; have := H 0; rewrite !mxE ![\sum_(s < 2 | _) _]big_mkcond /=.
rewrite !big_ord_recl !big_ord0 !mxE /= !addr0 !addn0 => ->.
rewrite -!addrA => /addrI/addrI; rewrite add0n !add0r (natrD _ M).
by move=> /addrI/esym/eqP; rewrite -subr_eq0 addrK => /eqP.
Qed.

(* b_KV of any layer, of which conversion.v has all of the biases.            *)
Lemma joined_KV d d' (l : layer F d d') M n (A : 'M_(M, d)) (B : 'M_(n, d)) g
    (b := convert_layer (no_bias l) 0) :
  (b _ (col_mx A B) g).1 = R_num l (- n%:Z) *m (b _ A g).1 + (b _ B g).1.
Proof. by rewrite /b join_layer ffunE /= [shift_layer _ _ g]ffunE. Qed.

(* Layer 1 with RoPE.                                                         *)
Section Turning.
Variables (r : nat) (R : rotation F r.+1).

Definition b_1 n (X : 'M[F]_(n, 4)) : 'cV[F]_r.+1 :=
  ((convert 0 0 (no_biases (adder_1 R)) X).1 0).1.

Lemma b_1_text n (x : 'cV[F]_n) :
  b_1 (text x) = \sum_s x s 0 *: col 0 (R (s%:Z - n%:Z)).
Proof.
rewrite /b_1 /convert /= !ffunE /= add0r mulmx_sumr; apply: eq_bigr => s _.
rewrite !rowK trmx_mul trmxK !mxE scale1r trmx_delta mul_mx_scalar.
by rewrite -scalemxAr mulmxA -turnD add0r colE addrC.
Qed.

(* In one layer, biases made apart join to R_(-M2) b_1 + b_2.                 *)
Corollary joining_one_layer M n (A : 'M_(M, 4)) (B : 'M_(n, 4)) :
  b_1 (col_mx A B) = R (- n%:Z) *m b_1 A + b_1 B.
Proof. exact: (joined_KV (l := adding R at_1 at_x at_y)). Qed.

Lemma turn_11 k (b := b_1 (text (two 1 1))) :
  (R k *m b) 0 0 = R (k - 2) 0 0 + R (k - 1) 0 0.
Proof.
rewrite /b b_1_text !big_ord_recl big_ord0 addr0 mulmxDr.
rewrite -!scalemxAr !colE !mulmxA -!turnD -!colE !mxE /=.
by rewrite !mul1r.
Qed.
End Turning.

(* RoPE by 90 degrees at each position.                                       *)
Section Quarter.
Lemma quarter_on_circle :
  (0 : 'rV[F]_1) ** 0 + const_mx 1 ** const_mx 1 = const_mx 1.
Proof. by apply/rowP => i; rewrite !mxE mul0r add0r mulr1. Qed.

Definition quarter : rotation F 2 :=
  rope 0 (power_table quarter_on_circle) Half.

Lemma quarter00 a : quarter a 0 0 = (pow (0, 1) a).1.
Proof.
have -> : 0 = (lshift 0 (lshift 1 (0 : 'I_1)) : 'I_2) by apply: val_inj.
apply: etrans (block_mxEul _ _ _ _ _ _) _.
apply: etrans (block_mxEul _ _ _ _ _ _) _.
by rewrite !mxE eqxx power_eq_pow.
Qed.


(* Under RoPE, plain addition b_1 + b_2 fails: for P1 = (1, 1) and every P2   *)
(* of two tokens.                                                             *)
Theorem joining_needs_the_shift (H_2 : 2%:R != 0 :> F) (P2 : 'M_(2, 4))
    (P1 := text (two 1 1)) (b := fun n => @b_1 _ quarter n) :
  b _ (col_mx P1 P2) != b _ P1 + b _ P2.
Proof.
rewrite /b joining_one_layer (inj_eq (addIr _)); apply/eqP => /colP /(_ 0).
rewrite turn_11 -[b_1 quarter P1]mul1mx -(turn0 quarter) turn_11 !quarter00.
rewrite /= !(mul0r, mulr0, mul1r, mulr1, addr0, add0r, sub0r, oppr0, opprK).
by move=> /eqP; rewrite -subr_eq0 opprK; apply/negP.
Qed.
End Quarter.
End Adder.
