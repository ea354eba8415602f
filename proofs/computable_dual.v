(* Computable twins of the dual forms: gradient.v, von_oswald.v and dual.v,   *)
(* on the arrays of computable.v.  instances_dual.v lets them compute, over   *)
(* the rationals, what refimpl/descent has computed.                          *)
(*                                                                            *)
(*   c_name           the twin of the definition called name                  *)
(*   name_c           the theorem that they are equal                         *)
(*   X Y E q W eta    as in gradient.v: tokens are rows, a layer W maps a row *)
(*                    x to x *m W^T; of gradient descent, irie.py and         *)
(*                    gradient.py                                             *)
(*   E Z              as in von_oswald.v: the context, and tokens that read   *)
(*                    it; of von_oswald.py                                    *)
(*   K V D q W        as in dual.v: features and values, the denominator, the *)
(*                    features of the query, the dual model; of ren_liu.py    *)
(*   neg              for each demonstration, the places of its negatives     *)
(* MathComp's x / 0 is 0, here as in the definitions: the equalities hold for *)
(* all numbers.                                                               *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention conversion gradient von_oswald dual.
From icl Require Import computable.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* More operations on arrays.                                                 *)
Section Arrays.
Variable F : fieldType.

Definition c_sub n m (A B : array F n m) :=
  tabulate n m (fun i j => A i j - B i j).
Definition c_scalar n (a : F) := tabulate n n (fun i j => a *+ (i == j)).
Definition c_col_mx n k m (A : array F n m) (B : array F k m) :=
  tabulate (n + k) m (fun i j => if (i < n)%N then A i j else B (i - n)%N j).
Definition c_block_mx n k m l (A : array F n m) (B : array F n l)
    (C : array F k m) (D : array F k l) :=
  c_col_mx (c_row_mx A B) (c_row_mx C D).
Definition c_ursubmx n k m l (A : array F (n + k) (m + l)) :=
  tabulate n l (fun i j => A i (m + j)%N).

Lemma to_mxB n m (A B : array F n m) : to_mx (c_sub A B) = to_mx A - to_mx B.
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mx_scalar n a : to_mx (c_scalar n a) = a%:M.
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mx_col_mx n k m (A : array F n m) (B : array F k m) :
  to_mx (c_col_mx A B) = col_mx (to_mx A) (to_mx B).
Proof.
rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE.
by case: splitP => l ->; rewrite mxE ?addKn.
Qed.

Lemma to_mx_block n k m l (A : array F n m) (B : array F n l)
    (C : array F k m) (D : array F k l) :
  to_mx (c_block_mx A B C D) =
  block_mx (to_mx A) (to_mx B) (to_mx C) (to_mx D).
Proof. by rewrite block_mxEv to_mx_col_mx !to_mx_row_mx. Qed.

Lemma to_mx_ursub n k m l (A : array F (n + k) (m + l)) :
  to_mx (c_ursubmx A) = ursubmx (to_mx A).
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma entry_c n m (A : array F n m) (i : 'I_n) (j : 'I_m) :
  A i j = to_mx A i j.
Proof. by rewrite mxE. Qed.
End Arrays.

Infix "-" := c_sub : array_scope.

Definition to_mxE := (computable.to_mxE, to_mxB, to_mx_scalar, to_mx_col_mx,
  to_mx_block, to_mx_ursub).

(* ------------------------------------------------------------------------- *)
(* gradient.v: attention to a history, and gradient descent.                  *)
Section Gradient.
Variable F : fieldType.

Definition c_attend_to n N r m (q : array F n r) (k : array F N r)
    (v : array F N m) : array F n m :=
  c_rows n (fun t => c_sums (iota 0 N) (fun s =>
    ((c_row t q *m (c_row s k)^T)%A 0%N 0%N) *: c_row s v)%A).

(* Attention without denominator to keys and values.                          *)
Theorem attend_to_c n N r m (q : array F n r) (k : array F N r)
    (v : array F N m) :
  to_mx (c_attend_to q k v) = attend_to (to_mx q) (to_mx k) (to_mx v).
Proof.
rewrite to_mx_rows; apply/row_matrixP => t; rewrite !rowK to_mx_all.
by apply: eq_bigr => s _; rewrite to_mxZ (entry_c _ 0 0) !to_mxE.
Qed.

Definition c_trained m n N (W : array F m n) (E : array F N m)
    (X : array F N n) : array F m n :=
  W + c_sums (iota 0 N) (fun i => (c_row i E)^T *m c_row i X)%A.

(* A layer after outer products of errors and inputs.                         *)
Theorem trained_c m n N (W : array F m n) (E : array F N m) (X : array F N n) :
  to_mx (c_trained W E X) =
  to_mx W + \sum_(i < N) (row i (to_mx E))^T *m row i (to_mx X).
Proof.
rewrite to_mxD to_mx_all; congr (_ + _).
by apply: eq_bigr => i _; rewrite !to_mxE.
Qed.

Section Descent.
Variables (m n N : nat) (X : array F N n) (Y : array F N m) (eta : nat -> F).
Variable W0 : array F m n.

Definition c_lsq (W : array F m n) : F :=
  let e := (X *m W^T - Y)%A in
  (2%:R * N%:R)^-1 * c_sum N (fun i => c_sum m (fun a => e i a ^+ 2)).

Fixpoint c_descent i : array F m n :=
  if i is i'.+1 then
    let W := c_descent i' in
    (W - (eta i' / N%:R) *: ((X *m W^T - Y)^T *m X))%A
  else W0.

(* What irie_lsq calls E: the error signals of step i.                        *)
Definition c_errors i : array F N m :=
  (- eta i) *: (N%:R^-1 *: (X *m (c_descent i)^T - Y)).

(* The squared error, ...                                                     *)
Lemma lsq_c W : c_lsq W = lsq (to_mx X) (to_mx Y) (to_mx W).
Proof.
congr (_ * _); rewrite c_sumE; apply: eq_bigr => i _.
by rewrite c_sumE; apply: eq_bigr => a _; rewrite entry_c !to_mxE.
Qed.

(* ... and gradient descent on it; that descent takes gradient steps is       *)
(* descent_step of gradient.v.                                                *)
Theorem descent_c i :
  to_mx (c_descent i) = descent (to_mx X) (to_mx Y) eta (to_mx W0) i.
Proof. by elim: i => //= i IH; rewrite !to_mxE IH. Qed.
End Descent.

Fixpoint c_history (b : nat -> nat) d (X : forall k, array F (b k) d) k :
    array F (total b k) d :=
  if k is k'.+1 then c_col_mx (X k') (c_history X k') else c_0 0 d.

Lemma history_c b d (X : forall k, array F (b k) d) k :
  to_mx (c_history X k) = history (fun i => to_mx (X i)) k.
Proof. by elim: k => [|k IH] /=; rewrite !to_mxE ?IH. Qed.

(* The right side of irie_lsq: what a layer says that attends to its history  *)
(* of k steps.                                                                *)
Theorem irie_c m n N M (X : array F N n) (Y : array F N m) eta W0 k
    (q : array F M n) :
  let W := descent (to_mx X) (to_mx Y) eta (to_mx W0) in
  let E i := - eta i *: (N%:R^-1 *: (to_mx X *m (W i)^T - to_mx Y)) in
  to_mx (q *m W0^T + c_attend_to q (c_history (b := fun=> N) (fun=> X) k)
    (c_history (c_errors X Y eta W0) k))%A =
  to_mx q *m (to_mx W0)^T +
  attend_to (to_mx q) (history (b := fun=> N) (fun=> to_mx X) k) (history E k).
Proof.
move=> W E; rewrite to_mxD attend_to_c !history_c !to_mxE.
congr (_ + attend_to _ _ _).
by elim: k => //= k ->; rewrite !to_mxE descent_c.
Qed.
End Gradient.

(* ------------------------------------------------------------------------- *)
(* von_oswald.v.                                                              *)
Section VonOswald.
Variable F : fieldType.

Definition c_lsa d (W_K W_Q W_V proj : array F d d) N (E : array F N d) M
    (Z : array F M d) : array F M d :=
  Z + c_attend_to (Z *m W_Q^T) (E *m W_K^T) (E *m W_V^T) *m proj^T.

(* One layer of linear self-attention, of any weights.                        *)
Theorem lsa_c d (W_K W_Q W_V proj : array F d d) N (E : array F N d) M
    (Z : array F M d) :
  to_mx (c_lsa W_K W_Q W_V proj E Z) =
  lsa (to_mx W_K) (to_mx W_Q) (to_mx W_V) (to_mx proj) (to_mx E) (to_mx Z).
Proof. by rewrite to_mxD to_mxM attend_to_c !to_mxE. Qed.

Section Prop1.
Variables (n m : nat) (W0 : array F m n).

Definition c_W_QK : array F (n + m) (n + m) :=
  c_block_mx (c_scalar n 1) (c_0 n m) (c_0 m n) (c_0 m m).
Definition c_W_V : array F (n + m) (n + m) :=
  c_block_mx (c_0 n n) (c_0 n m) W0 (c_scalar m (- 1)).

Lemma W_QK_c : to_mx c_W_QK = W_QK F n m.
Proof. by rewrite !to_mxE. Qed.

Lemma W_V_c : to_mx c_W_V = von_oswald.W_V (to_mx W0).
Proof. by rewrite !to_mxE raddfN. Qed.

(* The weights of GD++.                                                       *)
Definition c_gdpp_V : array F (n + m) (n + m) := c_scalar (n + m) (- 1).
Definition c_gdpp_P gamma rate : array F (n + m) (n + m) :=
  c_block_mx (c_scalar n gamma) (c_0 n m) (c_0 m n) (c_scalar m rate).

(* A layer of gdpp_layer.                                                     *)
Theorem gdpp_c gamma rate N (E : array F N (n + m)) M (Z : array F M (n + m)) :
  to_mx (c_lsa c_W_QK c_W_QK c_gdpp_V (c_gdpp_P gamma rate) E Z) =
  lsa (W_QK F n m) (W_QK F n m) (- 1%:M)
    (block_mx gamma%:M 0 0 rate%:M) (to_mx E) (to_mx Z).
Proof. by rewrite lsa_c W_QK_c !to_mxE raddfN. Qed.

Section Steps.
Variables (N : nat) (eta : nat -> F).

Definition c_gd i (E : array F N (n + m)) M (Z : array F M (n + m)) :=
  c_lsa c_W_QK c_W_QK c_W_V (c_scalar (n + m) (eta i / N%:R)) E Z.

Fixpoint c_steps (E : array F N (n + m)) i k M (Z : array F M (n + m)) :=
  if k is k'.+1 then c_steps (c_gd i E E) i.+1 k' (c_gd i E Z) else Z.

Definition c_xy_block (E : array F N (n + m)) : array F n m :=
  c_ursubmx ((E *m c_W_QK^T)^T *m (E *m c_W_V^T))%A.

Fixpoint c_xy_blocks (E : array F N (n + m)) i k : seq (array F n m) :=
  if k is k'.+1 then c_xy_block E :: c_xy_blocks (c_gd i E E) i.+1 k'
  else [::].

Variables (p : int) (P : nat).
Hypothesis H_P : (N <= P)%N.

Lemma gd_c i (E : array F N (n + m)) M (Z : array F M (n + m)) :
  to_mx (c_gd i E Z) =
  lsa (W_QK F n m) (W_QK F n m) (von_oswald.W_V (to_mx W0))
    (eta i / N%:R)%:M (to_mx E) (to_mx Z).
Proof. by rewrite lsa_c W_QK_c W_V_c to_mx_scalar. Qed.

(* k layers, for tokens that read the context and not each other: the same    *)
(* that they read from the biases which the context becomes under a mask that *)
(* lets it see all of itself (P >= N), ...                                    *)
Theorem steps_c (E : array F N (n + m)) i k M (Z : array F M (n + m)) :
  to_mx (c_steps E i k Z) =
  ask (convert p P (zero (stack (to_mx W0) N eta i k)) (to_mx E)) (to_mx Z).
Proof.
rewrite /convert shift_stack; elim: k i E Z => //= k IH i E Z.
by rewrite IH read_absorb run_lsa // !gd_c.
Qed.

(* ... and the x,y blocks of these biases.                                    *)
Theorem xy_blocks_c (E : array F N (n + m)) i k :
  map (@to_mx F n m) (c_xy_blocks E i k) =
  xy_blocks (convert p P (zero (stack (to_mx W0) N eta i k)) (to_mx E)).
Proof.
rewrite /convert shift_stack; elim: k i E => //= k IH i E.
rewrite IH run_lsa // gd_c; congr (_ :: _).
rewrite !ffunE state_KV add0r /= turned_no !each_mul.
by rewrite to_mx_ursub to_mxM to_mx_tr !to_mxM !to_mx_tr W_QK_c W_V_c.
Qed.
End Steps.
End Prop1.
End VonOswald.

(* ------------------------------------------------------------------------- *)
(* dual.v.                                                                    *)
Section Dual.
Variable F : fieldType.

(* Dai et al.                                                                 *)
Definition c_W_ZSL d dk dv T (W_K : array F dk d) (W_V : array F dv d)
    (X : array F T d) : array F dv dk :=
  W_V *m X^T *m (W_K *m X^T)^T.

Definition c_dW_ICL d dk dv N (W_K : array F dk d) (W_V : array F dv d)
    (X : array F N d) : array F dv dk :=
  c_sums (iota 0 N) (fun i =>
    W_V *m (c_row i X)^T *m (W_K *m (c_row i X)^T)^T)%A.

(* The layer of the text alone, ...                                           *)
Lemma W_ZSL_c d dk dv T (W_K : array F dk d) (W_V : array F dv d)
    (X : array F T d) :
  to_mx (c_W_ZSL W_K W_V X) = W_ZSL (to_mx W_K) (to_mx W_V) (to_mx X).
Proof. by rewrite !to_mxE. Qed.

(* ... and what demonstrations add to it.                                     *)
Theorem dW_ICL_c d dk dv N (W_K : array F dk d) (W_V : array F dv d)
    (X : array F N d) :
  to_mx (c_dW_ICL W_K W_V X) = dW_ICL (to_mx W_K) (to_mx W_V) (to_mx X).
Proof. by rewrite to_mx_all; apply: eq_bigr => i _; rewrite !to_mxE. Qed.

Fixpoint c_momentum m (eta : F) (v : nat -> array F 1 m) t : array F 1 m :=
  if t is t'.+1 then eta *: (c_momentum eta v t' + v t') else c_0 1 m.

(* What momentum attention adds.                                              *)
Theorem momentum_c m eta (v : nat -> array F 1 m) t :
  to_mx (c_momentum eta v t) = momentum eta (fun s => to_mx (v s)) t.
Proof. by elim: t => [|t IH] /=; rewrite !to_mxE ?IH. Qed.

(* Ren and Liu.                                                               *)
Section Features.
Variables (r m : nat).

Definition c_mass n (q : array F 1 r) (K : array F n r) : F :=
  c_sum n (fun i => (q *m (c_row i K)^T)%A 0%N 0%N).

Definition c_attend_mean n (q : array F 1 r) (K : array F n r)
    (V : array F n m) : array F 1 m :=
  (c_mass q K)^-1 *: c_attend_to q K V.

Definition c_dual_W0 n D (V : array F n m) (K : array F n r) : array F m r :=
  D^-1 *: (V^T *m K).

Lemma mass_c n (q : array F 1 r) (K : array F n r) :
  c_mass q K = mass (to_mx q) (to_mx K).
Proof.
rewrite /c_mass c_sumE; apply: eq_bigr => i _.
by rewrite (entry_c _ 0 0) !to_mxE.
Qed.

(* Attention with its denominator, over all tokens, ...                       *)
Theorem attend_mean_c n (q : array F 1 r) (K : array F n r) (V : array F n m) :
  to_mx (c_attend_mean q K V) = attend_mean (to_mx q) (to_mx K) (to_mx V).
Proof. by rewrite to_mxZ attend_to_c mass_c. Qed.

(* ... and the dual model before it has seen a demonstration.                 *)
Lemma dual_W0_c n D (V : array F n m) (K : array F n r) :
  to_mx (c_dual_W0 D V K) = dual_W0 D (to_mx V) (to_mx K).
Proof. by rewrite !to_mxE. Qed.

(* For each of N demonstrations, those of its negatives.                      *)
Definition negatives (neg : seq (seq nat)) N (i : 'I_N) : {set 'I_N} :=
  [set j : 'I_N | (j : nat) \in nth [::] neg i].

Definition c_negatives neg N d (A : array F N d) : array F N d :=
  c_rows N (fun i => c_sums [seq j <- iota 0 N | j \in nth [::] neg i]
    (fun j => c_row j A)).

Definition c_apart neg b N d (A : array F N d) : array F N d :=
  A - b *: c_negatives neg A.

Lemma negatives_c neg N d (A : array F N d) :
  to_mx (c_negatives neg A) =
  \matrix_(i < N) \sum_(j in negatives neg i) row j (to_mx A).
Proof.
rewrite to_mx_rows; apply/row_matrixP => i; rewrite !rowK to_mx_sums big_filter.
rewrite -[N in iota 0 N]subn0 -/(index_iota 0 N) big_mkord.
by apply: eq_big => [j | j _]; rewrite ?inE ?to_mx_row.
Qed.

(* The tokens less their negatives, as in negative_samples.                   *)
Theorem apart_c neg b N d (A : array F N d) :
  to_mx (c_apart neg b A) = \matrix_(i < N)
    (row i (to_mx A) - b *: \sum_(j in negatives neg i) row j (to_mx A)).
Proof.
rewrite to_mxB to_mxZ negatives_c; apply/row_matrixP => i.
by rewrite rowK linearB linearZ /= rowK.
Qed.

Hypothesis H_two : 2%:R != 0 :> F.

Section Step.
Variables (N : nat) (eta D : F) (V : array F N m) (K : array F N r).
Variables (neg : seq (seq nat)) (b lam c : F).
Variables (v : array F 1 m) (q : array F 1 r).

Definition c_step (W : array F m r) : array F m r :=
  (W - eta *: ((- (eta * D)^-1) *: (V^T *m K)
    + lam *: W + c *: (v^T *m q)
    + (b * (eta * D)^-1) *: ((c_negatives neg V)^T *m K)))%A.

(* One gradient step of the dual model, on the loss with all the terms of the *)
(* variants: the penalty (lam/2) |W|^2, c v^T W q, and negatives.  With lam,  *)
(* c and b 0 it is the loss of Theorem 3.1.                                   *)
Theorem step_c (W : array F m r) :
  gd_step (fun W => dual_loss eta D (to_mx V) (to_mx K) W
      + lam / 2%:R * inner W W + c * (to_mx v *m W *m (to_mx q)^T) 0 0
      + b * (eta * D)^-1 * \sum_(i < N) \sum_(j in negatives neg i)
        (row j (to_mx V) *m W *m (row i (to_mx K))^T) 0 0)
    eta (to_mx W) (to_mx (c_step W)).
Proof.
exists ((- (eta * D)^-1) *: ((to_mx V)^T *m to_mx K)
    + lam *: to_mx W + c *: ((to_mx v)^T *m to_mx q)
    + (b * (eta * D)^-1) *: ((to_mx (c_negatives neg V))^T *m to_mx K)).
  apply: gradD; last first.
    apply: eq_grad (grad_inner _ _ _) => U; rewrite inner_outer negatives_c.
    congr (_ * _); apply: eq_bigr => i _.
    by rewrite rowK !mulmx_suml summxE.
  apply: gradD; last exact: pair_grad.
  apply: gradD; first exact: dual_grad.
  have := penalty_grad (lam / 2%:R) (to_mx W).
  by rewrite [2%:R * _]mulrCA divff // mulr1.
by rewrite to_mxB to_mxZ !to_mxD !to_mxZ !to_mxM !to_mx_tr.
Qed.
End Step.
End Features.

Definition c_patch m n (W : array F m n) (a delta : array F 1 n) :
    array F m n :=
  ((a *m a^T)%A 0%N 0%N)^-1 *: ((delta *m W^T)^T *m a).

(* The patch of rank_one_patch.                                               *)
Theorem patch_c m n (W : array F m n) (a delta : array F 1 n) :
  to_mx (c_patch W a delta) = ((to_mx a *m (to_mx a)^T) 0 0)^-1 *:
    ((to_mx delta *m (to_mx W)^T)^T *m to_mx a).
Proof. by rewrite to_mxZ (entry_c _ 0 0) !to_mxE. Qed.
End Dual.
