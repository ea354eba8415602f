(* Dual forms of attention: Dai et al. 2023; Ren and Liu 2024, one gradient   *)
(* step of a dual model, with its variants; the rank-one patch of an MLP; and *)
(* the inequality of Cauchy and Schwarz on a ball of dual models.             *)
(*                                                                            *)
(*   X, X'            the demonstrations, and the tokens on the query's side  *)
(*                    (Dai: the other way round, as in the paper)             *)
(*   K V, K' V'       their features and values; a token is a row             *)
(*   q                the query, or its features                              *)
(*   D                the denominator of this query, over all tokens          *)
(*   f (x) = W phi(x) the dual model; for a row, phi x *m W^T                 *)
(*   W_0              (1/D) sum over the query's side of v phi(k)^T           *)
(*   eta              the rate; H_eta: eta != 0 in F.  H_two: 2 != 0 in F     *)
(*   attend_mean      attention with its denominator, over all tokens         *)
(* Ren and Liu's Theorem 3.1 is known to us from notes and slides: the loss   *)
(* is theirs, its constant 1 / (eta D), and W_0, are ours.  MathComp's x / 0  *)
(* is 0: for D = 0 the equalities hold with 1/D read as 0 on both sides; D is *)
(* the denominator of the attention itself (attend_mean_base), so the program *)
(* refuses exactly there.  A linear loss has a gradient everywhere            *)
(* (dual_grad), so every W has its step W_1.                                  *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention conversion gradient.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.Theory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Dual.
Variable F : fieldType.

(* Dai et al.: attention without softmax and scale.                           *)
Section Dai.
Variables (d dk dv N T M : nat) (W_K : 'M[F]_(dk, d)) (W_V : 'M[F]_(dv, d)).
Variables (X : 'M[F]_(T, d)) (X' : 'M[F]_(N, d)) (q : 'M[F]_(M, dk)).

Definition W_ZSL := W_V *m X^T *m (W_K *m X^T)^T.

Definition dW_ICL :=
  \sum_(i < N) W_V *m (row i X')^T *m (W_K *m (row i X')^T)^T.

(* With demonstrations X', F_ICL (q) = (W_ZSL + dW_ICL) q, where dW_ICL =     *)
(* sum_i (W_V x'_i) (W_K x'_i)^T: the zero-shot layer, changed by outer       *)
(* products.                                                                  *)
Theorem dai_icl :
  attend_to q (col_mx X' X *m W_K^T) (col_mx X' X *m W_V^T) =
  q *m (W_ZSL + dW_ICL)^T.
Proof.
have -> : dW_ICL = (X' *m W_V^T)^T *m (X' *m W_K^T).
  rewrite -sum_outer; apply: eq_bigr => i _.
  by rewrite !row_mul !trmx_mul !trmxK.
rewrite !mul_col_mx attend_col addrC linearD /= mulmxDr !attendE.
by rewrite /W_ZSL !trmx_mul !trmxK.
Qed.
End Dai.

(* What momentum attention adds to the output at t, as a running value.       *)
Fixpoint momentum m (eta : F) (v : nat -> 'rV[F]_m) t :=
  if t is t'.+1 then eta *: (momentum eta v t' + v t') else 0.

(* It is the sum over i < t of eta^(t-i) v_i.                                 *)
Theorem dai_momentum m eta (v : nat -> 'rV[F]_m) t :
  momentum eta v t = \sum_(i < t) eta ^+ (t - i) *: v i.
Proof.
elim: t => [|t IH] /=; first by rewrite big_ord0.
rewrite big_ord_recr /= subSnn expr1 scalerDr IH scaler_sumr; congr (_ + _).
by apply: eq_bigr => i _; rewrite scalerA -exprS subSn // ltnW.
Qed.

(* Ren and Liu, on features.                                                  *)

Section Features.
Variables (r m : nat).

Definition mass n (q : 'rV[F]_r) (K : 'M[F]_(n, r)) :=
  \sum_(i < n) (q *m (row i K)^T) 0 0.

Definition attend_mean n (q : 'rV[F]_r) (K : 'M[F]_(n, r)) (V : 'M[F]_(n, m)) :=
  (mass q K)^-1 *: attend_to q K V.

(* A token that sees all tokens gets this from the attention of               *)
(* linear_attention.v, and the denominators are the same.                     *)
Lemma attend_mean_base n P (q K : 'M[F]_(n, r)) (V : 'M[F]_(n, m)) (t : 'I_n)
    (H_P : (n <= maxn t.+1 P)%N) :
  row t (linear_attention q K q K V 0 0 P true) = attend_mean (row t q) K V /\
  den q K 0 P t = mass (row t q) K.
Proof.
have all s : s \in 'I_n -> seen P t s.
  by move=> _; apply: leq_trans (ltn_ord s) H_P.
have D : den q K 0 P t = mass (row t q) K.
  rewrite /den /z_at add0r mulmx_sumr summxE.
  by apply: eq_bigl => s; apply: all.
split=> //; rewrite rowK D /attend_mean; congr (_ *: _).
rewrite /num /S_at add0r attendE -sum_outer; congr (_ *m _).
by apply: eq_bigl => s; apply: all.
Qed.

(* - (1 / (eta D)) sum_i v_i^T W k_i.                                         *)
Definition dual_loss n eta D (V : 'M[F]_(n, m)) (K : 'M[F]_(n, r)) W :=
  - (eta * D)^-1 * \sum_(i < n) (row i V *m W *m (row i K)^T) 0 0.

Definition dual_W0 n D (V : 'M[F]_(n, m)) (K : 'M[F]_(n, r)) :=
  D^-1 *: (V^T *m K).

Lemma dual_grad n eta D (V : 'M[F]_(n, m)) (K : 'M[F]_(n, r)) W :
  is_grad (dual_loss eta D V K) W (- (eta * D)^-1 *: (V^T *m K)).
Proof. by apply: eq_grad (grad_inner _ _ _) => U; rewrite inner_outer. Qed.

Lemma penalty_grad c (W : 'M[F]_(m, r)) :
  is_grad (fun W => c * inner W W) W ((2%:R * c) *: W).
Proof.
have := grad_sqr c 0 W; rewrite subr0; apply: eq_grad => U.
by rewrite subr0.
Qed.

Lemma pair_grad c (v : 'rV[F]_m) (q : 'rV[F]_r) W :
  is_grad (fun W => c * (v *m W *m q^T) 0 0) W (c *: (v^T *m q)).
Proof.
apply: eq_grad (grad_inner _ _ _) => U.
by rewrite inner_outer big_ord1 !row_id.
Qed.

Hypothesis H_two : 2%:R != 0 :> F.

Lemma dual_step n eta D (V : 'M[F]_(n, m)) (K : 'M[F]_(n, r)) W W1 :
  eta != 0 -> gd_step (dual_loss eta D V K) eta W W1 ->
  W1 = W + D^-1 *: (V^T *m K).
Proof.
move=> H_eta /(gd_stepE H_two (dual_grad _ _ _ _ _)) ->.
by rewrite scalerA mulrN invfM mulrA divff // mul1r scaleNr opprK.
Qed.

Lemma read_dual M n c (V : 'M[F]_(n, m)) (K : 'M[F]_(n, r)) (q : 'M[F]_(M, r)) :
  q *m (c *: (V^T *m K))^T = c *: attend_to q K V.
Proof. by rewrite linearZ /= trmx_mul trmxK attendE -scalemxAr. Qed.

Section Layer.
Variables (N T : nat) (K : 'M[F]_(N, r)) (V : 'M[F]_(N, m)).
Variables (K' : 'M[F]_(T, r)) (V' : 'M[F]_(T, m)) (q : 'rV[F]_r) (eta : F).
Hypothesis H_eta : eta != 0.

Let D := mass q (col_mx K K').
Let o := attend_mean q (col_mx K K') (col_mx V V').
Let W0 := dual_W0 D V' K'.

Lemma outputE : o = D^-1 *: attend_to q K V + D^-1 *: attend_to q K' V'.
Proof. by rewrite /o /attend_mean attend_col scalerDr. Qed.

(* Theorem 3.1, as we know it, with our constants: the attention of the query *)
(* is the prediction of the dual model after one gradient step on the         *)
(* demonstrations.  Any number of tokens on the side of the query.            *)
Theorem features_gd_step W1
    (H_step : gd_step (dual_loss eta D V K) eta W0 W1) : o = q *m W1^T.
Proof.
rewrite (dual_step H_eta H_step) linearD /= mulmxDr !read_dual outputE.
exact: addrC.
Qed.

(* The rate cancels: W_1 is the same for every eta.                           *)
Theorem features_rate_cancels eta' W1 W1' :
  forall (H_eta' : eta' != 0)
    (H_step : gd_step (dual_loss eta D V K) eta W0 W1)
    (H_step' : gd_step (dual_loss eta' D V K) eta' W0 W1'), W1 = W1'.
Proof. by move=> H_eta' /(dual_step H_eta) -> /(dual_step H_eta') ->. Qed.

(* N steps, each on one demonstration in its order, arrive at the same        *)
(* prediction.                                                                *)
Theorem features_one_by_one (W : nat -> 'M[F]_(m, r)) :
  forall (H_W0 : W 0%N = W0) (H_step : forall i : 'I_N,
    gd_step (dual_loss eta D (row i V) (row i K)) eta (W i) (W i.+1)),
  o = q *m (W N)^T.
Proof.
move=> H_W0 H_step; suff -> : W N = W0 + D^-1 *: (V^T *m K).
  rewrite linearD /= mulmxDr !read_dual outputE; exact: addrC.
have partial k : (k <= N)%N -> W k = W0 +
    D^-1 *: \sum_(i < N | (i < k)%N) (row i V)^T *m row i K.
  elim: k => [_|k IH H_k]; first by rewrite big_pred0 ?scaler0 ?addr0.
  rewrite (dual_step H_eta (H_step (Ordinal H_k))) IH 1?ltnW // -addrA.
  rewrite -scalerDr [in RHS](bigD1 (Ordinal H_k)) //= [X in _ *: X]addrC.
  congr (_ + _ *: (_ + _)); apply: eq_bigl => i.
  by rewrite ltn_neqAle andbC -ltnS -val_eqE.
rewrite partial // -sum_outer; congr (_ + _ *: _).
by apply: eq_bigl => i; rewrite ltn_ord.
Qed.

(* Regularised, first reading: weight decay.  With the penalty (lam/2) |W|^2  *)
(* in the loss, the part of the query's side is multiplied by 1 - eta lam, so *)
(* eta does not cancel ...                                                    *)
Theorem features_weight_decay lam W1 (H_step : gd_step (fun W =>
    dual_loss eta D V K W + lam / 2%:R * inner W W) eta W0 W1) :
  q *m W1^T =
  D^-1 *: attend_to q K V + ((1 - eta * lam) / D) *: attend_to q K' V'.
Proof.
have := penalty_grad (lam / 2%:R) W0.
rewrite [2%:R * _]mulrCA divff // mulr1 => g.
rewrite (gd_stepE H_two (gradD (dual_grad _ _ _ _ _) g) H_step).
rewrite scalerDr !scalerA mulrN invfM mulrA divff // mul1r scaleNr opprD opprK.
rewrite addrCA /W0 /dual_W0 -scalerBl linearD /= mulmxDr !read_dual.
by rewrite mulrBl mul1r.
Qed.

(* ... and with (alpha/(2 eta)) |W|^2 by 1 - alpha: W_V [X, (1-alpha) X'] a,  *)
(* a the attention weights.                                                   *)
Corollary regularised_by_decay alpha W1 (H_step : gd_step (fun W =>
    dual_loss eta D V K W + alpha / (2%:R * eta) * inner W W) eta W0 W1) :
  q *m W1^T = D^-1 *: attend_to q K V + ((1 - alpha) / D) *: attend_to q K' V'.
Proof.
move: H_step; have -> : alpha / (2%:R * eta) = alpha / eta / 2%:R.
  by rewrite invfM mulrCA mulrC.
by move=> /features_weight_decay ->; rewrite [eta * _]mulrCA divff // mulr1.
Qed.

(* Regularised, second reading: the form on the slide, W_V X (softmax - alpha *)
(* I), whose output is o - alpha v for a token with value v.  It is one       *)
(* gradient step on the loss plus (alpha / (eta |q|^2)) v^T W q, which pushes *)
(* the prediction off the token's own value.  That loss is our                *)
(* reconstruction: the slide gives none.  |q|^2 != 0; for softmax, |phi       *)
(* (x)|^2 = exp |x|^2.  The instance is in readings_differ.                   *)
Theorem regularised_as_on_the_slide alpha (v : 'rV[F]_m) W1 :
  forall (H_q : (q *m q^T) 0 0 != 0)
    (H_step : gd_step (fun W => dual_loss eta D V K W +
       alpha / (eta * (q *m q^T) 0 0) * (v *m W *m q^T) 0 0) eta W0 W1),
  q *m W1^T = o - alpha *: v.
Proof.
move=> H_q; set c := alpha / _.
have g := pair_grad c v q W0.
move=> /(gd_stepE H_two (gradD (dual_grad _ _ _ _ _) g)) ->.
rewrite scalerDr !scalerA mulrN invfM mulrA divff // mul1r scaleNr opprD opprK.
rewrite addrA [(_ - _)^T]linearB /= mulmxBr [(_ + _)^T]linearD /=
  mulmxDr !read_dual outputE.
congr (_ - _); first exact: addrC.
rewrite attendE mulmxA [q *m q^T]mx11_scalar mul_scalar_mx scalerA.
by rewrite /c invfM [eta * _]mulrCA mulVKf // divfK.
Qed.
End Layer.
End Features.

(* A linear map W_FF behind the layer belongs to the dual model: start from   *)
(* W_FF W_0, and fit the values W_FF v_i.  W_FF may depend on the query, so   *)
(* an MLP with ReLU is covered, as the linear map it is at this query, up to  *)
(* its biases (the constants b_1, b_2).                                       *)
Theorem features_map_behind r m m' N T (K : 'M[F]_(N, r)) (V : 'M[F]_(N, m))
    (K' : 'M[F]_(T, r)) (V' : 'M[F]_(T, m)) (q : 'rV[F]_r) eta
    (W_FF : 'M[F]_(m', m)) W1 :
  forall (H_two : 2%:R != 0 :> F) (H_eta : eta != 0),
  let D := mass q (col_mx K K') in
  forall (H_step : gd_step (dual_loss eta D (V *m W_FF^T) K) eta
    (W_FF *m dual_W0 D V' K') W1),
  attend_mean q (col_mx K K') (col_mx V V') *m W_FF^T = q *m W1^T.
Proof.
move=> H_two H_eta D; have -> : W_FF *m dual_W0 D V' K' =
    dual_W0 D (V' *m W_FF^T) K'.
  by rewrite /dual_W0 trmx_mul trmxK -scalemxAr mulmxA.
move=> /(features_gd_step H_two H_eta) <-.
by rewrite /attend_mean -scalemxAl !attendE -!mulmxA mul_col_mx.
Qed.

(* Any kernel kappa, keys and values of the tokens by any functions; softmax  *)
(* is kappa k q = exp (k . q).  phi_k and phi_q have to give kappa only       *)
(* between the keys at hand and the query, so their width need not be         *)
(* infinite (features_exist: n will do, for all queries).  In the paper phi_k *)
(* = phi_q = phi, for which the theorem holds as well.                        *)

Section Kernel.
Variables (d dk dv r : nat).
Variables (key : 'rV[F]_d -> 'rV[F]_dk) (val : 'rV[F]_d -> 'rV[F]_dv).
Variables (kappa : 'rV[F]_dk -> 'rV[F]_dk -> F).

Definition normalizer n (A : 'M[F]_(n, d)) (q : 'rV[F]_dk) :=
  \sum_(i < n) kappa (key (row i A)) q.

Definition kernel_attention n (A : 'M[F]_(n, d)) (q : 'rV[F]_dk) :=
  \sum_(i < n) (kappa (key (row i A)) q / normalizer A q) *: val (row i A).

Variables (phi_k phi_q : 'rV[F]_dk -> 'rV[F]_r).

Definition represents n (A : 'M[F]_(n, d)) (q : 'rV[F]_dk) := forall i,
  kappa (key (row i A)) q = (phi_q q *m (phi_k (key (row i A)))^T) 0 0.

Let K n (A : 'M[F]_(n, d)) := each (fun x => phi_k (key x)) A.
Let V n (A : 'M[F]_(n, d)) := each val A.

Lemma kernel_features n (A : 'M[F]_(n, d)) q : represents A q ->
  normalizer A q = mass (phi_q q) (K A) /\
  kernel_attention A q = attend_mean (phi_q q) (K A) (V A).
Proof.
move=> H_phi; have D : normalizer A q = mass (phi_q q) (K A).
  by apply: eq_bigr => i _; rewrite H_phi rowK.
split=> //; rewrite /kernel_attention D /attend_mean; apply/row_matrixP => t.
rewrite row_id [in RHS]linearZ /= rowK scaler_sumr; apply: eq_bigr => i _.
by rewrite H_phi !rowK row_id scalerA mulrC.
Qed.

Hypothesis H_two : 2%:R != 0 :> F.

(* The same for a kernel.                                                     *)
Theorem ren_liu N T (X : 'M[F]_(N, d)) (X' : 'M[F]_(T, d)) q eta W1 :
  forall (H_eta : eta != 0) (H_phi : represents (col_mx X X') q),
  let D := normalizer (col_mx X X') q in
  let W0 := D^-1 *: \sum_(j < T)
    (val (row j X'))^T *m phi_k (key (row j X')) in
  forall (H_step : gd_step (fun W => - (eta * D)^-1 * \sum_(i < N)
    (val (row i X) *m W *m (phi_k (key (row i X)))^T) 0 0) eta W0 W1),
  kernel_attention (col_mx X X') q = phi_q q *m W1^T.
Proof.
move=> H_eta H_phi D W0; have [ED ->] := kernel_features H_phi.
have -> : W0 = dual_W0 D (V X') (K X').
  rewrite /dual_W0 -sum_outer; congr (_ *: _).
  by apply: eq_bigr => j _; rewrite !rowK.
move=> /(eq_step (L' := dual_loss eta D (V X) (K X))) H.
rewrite /K /V !each_cat; apply: (features_gd_step H_two H_eta).
rewrite -each_cat -/(K (col_mx X X')) -ED; apply: H => W; congr (_ * _).
by apply: eq_bigr => i _; rewrite !rowK.
Qed.
End Kernel.

(* Every kernel has such features, on any n keys.                             *)
Lemma features_exist d dk (key : 'rV[F]_d -> 'rV[F]_dk) kappa n
    (A : 'M[F]_(n, d)) :
  exists phi_k phi_q : 'rV[F]_dk -> 'rV[F]_n,
  forall q, represents key kappa phi_k phi_q A q.
Proof.
exists (fun x => if [pick i | key (row i A) == x] is Some i
                 then delta_mx 0 i else 0).
exists (fun x => \row_i kappa (key (row i A)) x) => q i.
case: pickP => [j /eqP <- | /(_ i)]; last by rewrite eqxx.
by rewrite trmx_delta -colE !mxE.
Qed.

(* Augmented: any g_1 on the values and g_2 on the features of the keys, of   *)
(* the demonstrations only, for instance g (x) = x + c W_2 sigma (W_1 x) on   *)
(* each row; the denominator D is that of the changed features.  One gradient *)
(* step on the loss with g_1 (V) and g_2 (K), an instance of                  *)
(* features_gd_step.                                                          *)
Corollary augmented r m N T (K : 'M[F]_(N, r)) (V : 'M[F]_(N, m))
    (K' : 'M[F]_(T, r)) (V' : 'M[F]_(T, m)) (q : 'rV[F]_r) eta
    (g1 : 'M[F]_(N, m) -> 'M[F]_(N, m)) (g2 : 'M[F]_(N, r) -> 'M[F]_(N, r))
    W1 :
  let D := mass q (col_mx (g2 K) K') in
  forall (H_two : 2%:R != 0 :> F) (H_eta : eta != 0)
    (H_step : gd_step (fun W => - (eta * D)^-1 * \sum_(i < N)
        (row i (g1 V) *m W *m (row i (g2 K))^T) 0 0)
      eta (D^-1 *: (V'^T *m K')) W1),
  attend_mean q (col_mx (g2 K) K') (col_mx (g1 V) V') = q *m W1^T.
Proof. move=> D H_two H_eta; exact: features_gd_step. Qed.

(* Negative samples: for each demonstration i the value v_i - (beta/k_i)      *)
(* sum_{j in Neg i} v_j, in the values alone.  One gradient step on the loss  *)
(* plus sum_i (beta/(k_i eta D)) sum_{j in Neg i} v_j^T W k_i, which pushes f *)
(* (x_i) off the values of its negatives.  That the demonstrations alone have *)
(* negatives is our reading, and Neg any choice of them, as a list for each   *)
(* i.  k_i, for the program the length of Neg i, is any number here (for k_i  *)
(* = 0 in F beta / k_i is read as 0; the program refuses an empty list).      *)
Theorem negative_samples r m N T (K : 'M[F]_(N, r)) (V : 'M[F]_(N, m))
    (K' : 'M[F]_(T, r)) (V' : 'M[F]_(T, m)) (q : 'rV[F]_r)
    (Neg : 'I_N -> seq 'I_N) beta (k : 'I_N -> nat) eta W1 :
  let D := mass q (col_mx K K') in
  let Vn := \matrix_(i < N)
    (row i V - (beta / (k i)%:R) *: \sum_(j <- Neg i) row j V) in
  forall (H_two : 2%:R != 0 :> F) (H_eta : eta != 0)
    (H_step : gd_step (fun W => dual_loss eta D V K W +
        \sum_(i < N) beta / (k i)%:R * (eta * D)^-1 * \sum_(j <- Neg i)
          (row j V *m W *m (row i K)^T) 0 0)
      eta (dual_W0 D V' K') W1),
  attend_mean q (col_mx K K') (col_mx Vn V') = q *m W1^T.
Proof.
move=> D Vn H_two H_eta H; apply: (features_gd_step H_two H_eta).
apply: eq_step H => W; rewrite {2}/dual_loss.
have term i : (row i Vn *m W *m (row i K)^T) 0 0 =
    (row i V *m W *m (row i K)^T) 0 0 -
    beta / (k i)%:R * \sum_(j <- Neg i) (row j V *m W *m (row i K)^T) 0 0.
  rewrite rowK !mulmxBl -!scalemxAl !mulmx_suml [LHS]mxE.
  by rewrite [X in _ + X]mxE [X in _ - X]mxE summxE.
rewrite (eq_bigr _ (fun i _ => term i)) sumrB mulrBr; congr (_ + _).
rewrite mulNr opprK [RHS]mulr_sumr; apply: eq_bigr => i _.
by rewrite mulrA [_^-1 * _]mulrC.
Qed.

(* The rank-one patch ("Learning without training").                          *)

(* If a context moves the input of a linear layer from a to a + delta, the    *)
(* patch dW = (W delta) a^T / |a|^2 of the layer does the same for a.  |a|^2  *)
(* != 0.                                                                      *)
Theorem rank_one_patch m n (W : 'M[F]_(m, n)) (a delta : 'rV[F]_n)
    (H_a : (a *m a^T) 0 0 != 0) :
  (a + delta) *m W^T =
  a *m (W + ((a *m a^T) 0 0)^-1 *: ((delta *m W^T)^T *m a))^T.
Proof.
rewrite mulmxDl linearD linearZ /= mulmxDr trmx_mul trmxK.
rewrite -scalemxAr mulmxA {2}[a *m a^T]mx11_scalar mul_scalar_mx scalerA.
by rewrite mulVf // scale1r.
Qed.
End Dual.

(* Witnesses, with numbers.                                                   *)
Section Witnesses.
Let c (x : rat) : 'M[rat]_1 := x%:M.

(* The two readings of regularised differ: one demonstration with value 0 and *)
(* one token on the side of the query with value 1, features 1, eta = alpha = *)
(* 1: 0 by decay, -1/2 on the slide.                                          *)
Theorem readings_differ :
  let K := c 1 in let V := c 0 in let V' := c 1 in let q := c 1 in
  let D := mass q (col_mx K K) in
  let W0 := dual_W0 D V' K in
  let step L := gd_step (fun W => dual_loss 1 D V K W + L W) 1 W0 in
  [/\ D = 2%:R,
      exists2 W1, step (fun W => 1 / (2%:R * 1) * inner W W) W1
        & q *m W1^T = 0
    & exists2 W1, step (fun W => 1 / (1 * (q *m q^T) 0 0)
          * (V' *m W *m q^T) 0 0) W1
        & q *m W1^T = c (- 2%:R^-1)].
Proof.
move=> K V V' q D W0 step.
have qq : q *m q^T = 1%:M by rewrite tr_scalar_mx mulmx1.
have DE : D = 2%:R.
  by rewrite /D /mass big_split_ord !big_ord1 rowKu rowKd row_id qq !mxE.
have aE (v : 'M[rat]_1) : attend_to q K v = v.
  by rewrite attendE mulmxA qq mul1mx.
split=> //.
  have [W1 H] : exists W1, step (fun W => 1 / (2%:R * 1) * inner W W) W1.
    by do 2!eexists; [apply: gradD; [apply: dual_grad | apply: penalty_grad]|].
  exists W1 => //; rewrite (regularised_by_decay (isT : 2%:R != 0 :> rat)
    (isT : 1 != 0 :> rat) H).
  by rewrite subrr mul0r scale0r addr0 aE /V /c raddf0 scaler0.
have [W1 H] : exists W1, step (fun W => 1 / (1 * (q *m q^T) 0 0)
    * (V' *m W *m q^T) 0 0) W1.
  by do 2!eexists; [apply: gradD; [apply: dual_grad | apply: pair_grad]|].
exists W1 => //; rewrite (regularised_as_on_the_slide (isT : 2%:R != 0 :> rat)
  (isT : 1 != 0 :> rat) _ H) ?qq ?mxE //.
rewrite /attend_mean attend_col !aE -/D DE /V /V' /c raddf0 add0r.
by rewrite scale_scalar_mx scale1r -raddfB mulr1.
Qed.

(* The patch depends on the token: behind linear attention with all weights 1 *)
(* and the context 1, no dW serves the tokens 1 and 2 both (a linear layer W  *)
(* = 1 follows the attention; 2 = 1 + dW, and 10 = 8 (1 + dW)).               *)
Theorem no_patch_for_two_tokens (dW : 'M[rat]_1) :
  let o n (A : 'M[rat]_(n, 1)) := linear_attention A A A A A 0 0 n false in
  let same (x : 'M[rat]_1) :=
    dsubmx (o _ (col_mx (c 1) x)) = o _ x *m (1%:M + dW)^T in
  ~ (same (c 1) /\ same (c 2%:R)).
Proof.
move=> o same; have oE n (A : 'M[rat]_(n, 1)) : o _ A = A *m (A^T *m A).
  by rewrite /o linear_attention_full // mulmx0 add0r attendE.
have H x : same (c x) -> x * (1 + x * x) = x * (x * x) * (1 + dW 0 0).
  rewrite /same !oE mul_col_mx col_mxKd tr_col_mx mul_row_col !tr_scalar_mx.
  rewrite -!scalar_mxM -raddfD /= -scalar_mxM mul_scalar_mx.
  by move=> /matrixP /(_ 0 0); rewrite !mxE !mulr1n mulr1.
case=> /H H1 /H; have <- : 2%:R = 1 + dW 0 0 by rewrite -[RHS]mul1r -H1.
by move/eqP.
Qed.
End Witnesses.

(* The dual models in a Frobenius ball |W|_F <= w.  This is the inequality of *)
(* Cauchy and Schwarz and its case of equality, and no more: the loss is      *)
(* linear in W, <W, G>, so its supremum over the ball is w |G|_F.  A bound    *)
(* such as Theorem 3.2 of Ren and Liu (known to us from slides, which do not  *)
(* name the norm) begins there; its probability is not proved here.  Squared, *)
(* so that no root is needed.                                                 *)

Section Frobenius.
Variables (R : realFieldType) (m n : nat).
Implicit Types W G : 'M[R]_(m, n).

Lemma inner_ge0 G : 0 <= inner G G.
Proof.
rewrite inner_sum sumr_ge0 // => i _; rewrite sumr_ge0 // => j _.
by rewrite -expr2 sqr_ge0.
Qed.

Lemma inner_eq0 G : inner G G = 0 -> G = 0.
Proof.
rewrite inner_sum => /eqP; rewrite psumr_eq0 => [|i _]; last first.
  by rewrite sumr_ge0 // => j _; rewrite -expr2 sqr_ge0.
move=> /allP H; apply/matrixP => i j; have /eqP := H i (mem_index_enum i).
move=> /eqP; rewrite psumr_eq0 => [|k _]; last by rewrite -expr2 sqr_ge0.
move=> /allP /(_ j (mem_index_enum j)).
by rewrite -expr2 sqrf_eq0 => /eqP ->; rewrite mxE.
Qed.

(* <W, G>^2 <= |W|^2 |G|^2.                                                   *)
Theorem cauchy_schwarz W G : inner W G ^+ 2 <= inner W W * inner G G.
Proof.
have [/inner_eq0 -> | H_G] := eqVneq (inner G G) 0.
  by rewrite -(scale0r G) !innerZr !innerZl !mul0r mulr0 expr0n.
have a_gt0 : 0 < inner G G by rewrite lt_neqAle eq_sym H_G inner_ge0.
have := inner_ge0 (inner G G *: W + (- inner W G) *: G).
rewrite innerDl !innerDr !innerZl !innerZr (innerC G W).
rewrite [X in _ + X](_ : _ = 0) ?addr0; last first.
  by rewrite !mulNr mulrN opprK [inner G G * _]mulrC addNr.
by rewrite -mulrDr pmulr_rge0 // mulNr subr_ge0 -expr2 mulrC.
Qed.

(* On the ball <W, G>^2 <= w^2 |G|^2; and w |G| is reached, at W = (w / |G|)  *)
(* G, wherever |G| exists and is not 0.                                       *)
Theorem frobenius_ball w G :
  (forall W, inner W W <= w ^+ 2 -> inner W G ^+ 2 <= w ^+ 2 * inner G G) /\
  (forall s, s ^+ 2 = inner G G -> s != 0 ->
   inner ((w / s) *: G) ((w / s) *: G) = w ^+ 2 /\
   inner ((w / s) *: G) G = w * s).
Proof.
split=> [W H_W | s H_s H_s0].
  by apply: le_trans (cauchy_schwarz W G) _; rewrite ler_wpmul2r ?inner_ge0.
rewrite innerZr !innerZl -H_s expr2.
by split; rewrite !mulrA !divfK // mulrAC divfK.
Qed.
End Frobenius.
