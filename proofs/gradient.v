(* Gradient descent without limits: gradients by algebra, the dual form of a  *)
(* trained linear layer (Irie et al. 2022, after Aizerman et al. 1964), and   *)
(* the biases of a converted prompt as one gradient step.  von_oswald.v and   *)
(* dual.v go on from here.  The Python takes its gradients by dual numbers    *)
(* (refimpl/systems/dual.py): the coefficient of eps in L (W + eps D).  Here  *)
(* it is the linear coefficient of L along a line, <G, D>; that the two       *)
(* always agree is not proved here.                                           *)
(* The definition is meant for losses that are polynomials of degree at most  *)
(* 2 along every line, and all losses here are.  It is about values: in a     *)
(* finite field a polynomial of higher degree may take the values of such a   *)
(* one (over the field of 3 elements W^3 is W, and so has gradient 1 here,    *)
(* and 3 W^2 = 0 by dual numbers).  In an infinite field it is the polynomial *)
(* that counts.  The gradients of the linear loss, of the penalty and of      *)
(* least squares stay what they are in every extension of F (extended_inner,  *)
(* extended_sqr, extended_lsq), infinite ones among them: no such accident.   *)
(*                                                                            *)
(*   F                any field; H_two: 2 != 0 in F, for unique gradients     *)
(*   n m r N          widths: input, output, features; number of examples     *)
(*   X Y E q          inputs, targets, error signals, queries, by rows        *)
(*   W                weights of a linear layer, as in the papers: it maps a  *)
(*                    column x to W x, so a row x to x *m W^T                 *)
(*   L eta            a loss, a rate                                          *)
(*   inner A B        <A, B>, the sum of all A i j * B i j                    *)
(*   attend_to q k v  attention of queries q to keys k and values v, without  *)
(*                    denominator and mask: row t is sum_s (q_t . k_s) v_s    *)
(* MathComp's x / 0 is 0.  Here it can matter only for N = 0 in F: the mean   *)
(* over the examples is then read as 0, loss, gradient and step are 0, and    *)
(* the equalities hold; a program that divides by N refuses such an N.        *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention conversion.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section Gradient.
Variable F : fieldType.

Definition inner m n (A B : 'M[F]_(m, n)) : F := \tr (A^T *m B).

Lemma innerC m n (A B : 'M[F]_(m, n)) : inner A B = inner B A.
Proof. by rewrite /inner -mxtrace_tr trmx_mul trmxK. Qed.

Lemma innerDr m n (A B C : 'M[F]_(m, n)) :
  inner A (B + C) = inner A B + inner A C.
Proof. by rewrite /inner mulmxDr mxtraceD. Qed.

Lemma innerZr m n c (A B : 'M[F]_(m, n)) : inner A (c *: B) = c * inner A B.
Proof. by rewrite /inner -scalemxAr mxtraceZ. Qed.

Lemma innerDl m n (A B C : 'M[F]_(m, n)) :
  inner (A + B) C = inner A C + inner B C.
Proof. by rewrite ![inner _ C]innerC innerDr. Qed.

Lemma innerZl m n c (A B : 'M[F]_(m, n)) : inner (c *: A) B = c * inner A B.
Proof. by rewrite ![inner _ B]innerC innerZr. Qed.

Lemma inner_delta m n (A : 'M[F]_(m, n)) i j : inner A (delta_mx i j) = A i j.
Proof.
rewrite /inner -(mul_delta_mx (0 : 'I_1)) mulmxA mxtrace_mulC -colE -rowE.
by rewrite /mxtrace big_ord1 !mxE.
Qed.

(* <sum_i k_i v_i^T, S> = sum_i k_i^T S v_i.                                  *)
Lemma inner_outer N r m (k : 'M[F]_(N, r)) (v : 'M[F]_(N, m)) S :
  inner (k^T *m v) S = \sum_(i < N) (row i k *m S *m (row i v)^T) 0 0.
Proof.
rewrite /inner trmx_mul trmxK -mulmxA mxtrace_mulC; apply: eq_bigr => i _.
by rewrite -row_mul !mxE; apply: eq_bigr => j _; rewrite !mxE.
Qed.

Lemma inner_sum m n (A B : 'M[F]_(m, n)) :
  inner A B = \sum_i \sum_j A i j * B i j.
Proof.
rewrite /inner /mxtrace exchange_big /=; apply: eq_bigr => j _.
by rewrite mxE; apply: eq_bigr => i _; rewrite mxE.
Qed.

(* G is the gradient of L at W: on every line W + t D, L is a polynomial in t *)
(* of degree at most 2 whose linear coefficient is <G, D>.                    *)
Definition is_grad m n (L : 'M[F]_(m, n) -> F) (W G : 'M[F]_(m, n)) :=
  forall D : 'M[F]_(m, n), exists c, forall t,
    L (W + t *: D) = L W + t * inner G D + t ^+ 2 * c.

(* One step of gradient descent.                                              *)
Definition gd_step m n (L : 'M[F]_(m, n) -> F) eta (W W1 : 'M[F]_(m, n)) :=
  exists2 G, is_grad L W G & W1 = W - eta *: G.

(* Gradients add, and pass through linear layers.                             *)
Lemma eq_grad m n (L L' : 'M[F]_(m, n) -> F) W G :
  L =1 L' -> is_grad L W G -> is_grad L' W G.
Proof. by move=> e g D; have [c E] := g D; exists c => t; rewrite -!e. Qed.

Lemma eq_step m n (L L' : 'M[F]_(m, n) -> F) eta W W1 :
  L =1 L' -> gd_step L eta W W1 -> gd_step L' eta W W1.
Proof. by move=> e [G g ->]; exists G => //; apply: eq_grad g. Qed.

Lemma grad_inner m n a (A W : 'M[F]_(m, n)) :
  is_grad (fun V => a * inner A V) W (a *: A).
Proof.
move=> D; exists 0 => t; rewrite innerDr innerZr innerZl mulr0 addr0 mulrDr.
by rewrite mulrCA.
Qed.

Lemma gradD m n (L L' : 'M[F]_(m, n) -> F) W G G' :
  is_grad L W G -> is_grad L' W G' -> is_grad (fun V => L V + L' V) W (G + G').
Proof.
move=> g g' D; have [[c E] [c' E']] := (g D, g' D); exists (c + c') => t.
by rewrite E E' innerDl !mulrDr addrACA [X in X + _ = _]addrACA.
Qed.

Lemma grad_sqr m n c (Y W : 'M[F]_(m, n)) :
  is_grad (fun V => c * inner (V - Y) (V - Y)) W ((2%:R * c) *: (W - Y)).
Proof.
move=> D; exists (c * inner D D) => t; rewrite [W + _ - _]addrAC.
move: (W - Y) => E; rewrite innerDl !innerDr !innerZl !innerZr (innerC D E).
move: (inner E E) (inner E D) (inner D D) => x y z.
rewrite mulr_natl mulr2n addrA -[x + _ + _]addrA mulrDl !mulrDr expr2.
by rewrite -!mulrA ![c * (t * _)]mulrCA.
Qed.

(* The chain rule, through a linear layer that reads the rows of X: if D is   *)
(* the gradient by the outputs, that by the weights is sum_i D_i x_i^T.       *)
Lemma grad_linear m n N (l : 'M[F]_(N, m) -> F) (X : 'M[F]_(N, n)) W D :
  is_grad l (X *m W^T) D -> is_grad (fun V => l (X *m V^T)) W (D^T *m X).
Proof.
move=> g C; have [c E] := g (X *m C^T); exists c => t.
rewrite linearD linearZ /= mulmxDr -scalemxAr E; congr (_ + _ * _ + _).
by rewrite [RHS]innerC /inner mulmxA mxtrace_mulC.
Qed.

Hypothesis H_two : 2%:R != 0 :> F.

(* There is at most one gradient, if 2 != 0.                                  *)
Lemma grad_unique m n (L : 'M[F]_(m, n) -> F) W G G' :
  is_grad L W G -> is_grad L W G' -> G = G'.
Proof.
move=> gG gG'; apply/matrixP => i j.
have [[c E] [c' E']] := (gG (delta_mx i j), gG' (delta_mx i j)).
rewrite !inner_delta in E E'; apply/eqP; rewrite -subr_eq0.
have {}E t : t * (G i j - G' i j) + t ^+ 2 * (c - c') = 0.
  have /eqP := E t; rewrite E' -!addrA (inj_eq (addrI _)) eq_sym -subr_eq0.
  by rewrite opprD addrACA -!mulrBr => /eqP.
move: (G i j - G' i j) (c - c') E => g e E.
have E1 : g + e = 0 by have := E 1; rewrite expr1n !mul1r.
have E2 : - g + e = 0 by have := E (- 1); rewrite sqrrN expr1n mulN1r mul1r.
have : 2%:R * g = 0.
  rewrite mulr_natl mulr2n -(subrr 0) -{1}E1 -E2 opprD opprK addrACA subrr.
  by rewrite addr0.
by move/eqP; rewrite mulf_eq0 (negPf H_two).
Qed.

Lemma gd_stepE m n (L : 'M[F]_(m, n) -> F) eta W G W1 :
  is_grad L W G -> gd_step L eta W W1 -> W1 = W - eta *: G.
Proof. by move=> g [G' /(grad_unique g) <-]. Qed.

(* Attention without denominator: the queries q read keys k and values v.     *)
Definition attend_to n N r m (q : 'M[F]_(n, r)) (k : 'M[F]_(N, r))
    (v : 'M[F]_(N, m)) : 'M[F]_(n, m) :=
  \matrix_(t < n) \sum_(s < N) (row t q *m (row s k)^T) 0 0 *: row s v.

Lemma attendE n N r m (q : 'M_(n, r)) (k : 'M_(N, r)) (v : 'M_(N, m)) :
  attend_to q k v = q *m (k^T *m v).
Proof.
apply/row_matrixP => t; rewrite rowK row_mul -sum_outer mulmx_sumr.
apply: eq_bigr => s _; rewrite mulmxA [row t q *m _]mx11_scalar mul_scalar_mx.
by rewrite mxE.
Qed.

Lemma attend_col n N N' r m (q : 'M_(n, r)) (k : 'M_(N, r)) (k' : 'M_(N', r))
    (v : 'M_(N, m)) (v' : 'M_(N', m)) :
  attend_to q (col_mx k k') (col_mx v v') = attend_to q k v + attend_to q k' v'.
Proof. by rewrite !attendE tr_col_mx mul_row_col mulmxDr. Qed.

Lemma state_KV N r m (k gk : 'M[F]_(N, r)) (v : 'M_(N, m)) S z :
  (state_after k gk v S z).1 = S + k^T *m v.
Proof. by rewrite /= sum_outer. Qed.

(* Where every token sees all, the attention of linear_attention.v is this.   *)
Lemma linear_attention_full N r m (q k gq gk : 'M[F]_(N, r)) (v : 'M_(N, m))
    S z P : (N <= P)%N ->
  linear_attention q k gq gk v S z P false = q *m S + attend_to q k v.
Proof.
move=> H_P; apply/row_matrixP => t; rewrite rowK linearD /= !row_mul.
rewrite /num /S_at attendE row_mul -mulmxDr -sum_outer; congr (_ *m (_ + _)).
apply: eq_bigl => s; rewrite /seen (leq_trans (ltn_ord s)) //.
exact: leq_trans H_P (leq_maxr _ _).
Qed.

(* The dual form.                                                             *)

Section DualForm.
Variables (n m : nat).

(* Irie et al.: a linear layer W_0 + sum_i e_i x_i^T, applied to q, is W_0 q  *)
(* plus attention of q to the keys x_i and the values e_i.                    *)
Theorem irie_dual_form N M (W0 : 'M[F]_(m, n)) (E : 'M_(N, m)) (X : 'M_(N, n))
    (q : 'M_(M, n)) :
  q *m (W0 + \sum_(i < N) (row i E)^T *m row i X)^T =
  q *m W0^T + attend_to q X E.
Proof. by rewrite sum_outer linearD /= trmx_mul trmxK mulmxDr attendE. Qed.

(* The same as a state: the trained layer is the S after the tokens (x_i,     *)
(* e_i), started from W_0 (S is W^T).                                         *)
Lemma irie_state N (W0 : 'M[F]_(m, n)) (E : 'M_(N, m)) (X gk : 'M_(N, n)) z :
  (state_after X gk E W0^T z).1 =
  (W0 + \sum_(i < N) (row i E)^T *m row i X)^T.
Proof. by rewrite state_KV sum_outer linearD /= trmx_mul trmxK. Qed.

(* The same token by token: causal attention without denominator, started     *)
(* from W_0, applies to query t the layer that has been trained on the        *)
(* examples 0 ... t.                                                          *)
Theorem irie_causal N (W0 : 'M[F]_(m, n)) (E : 'M_(N, m))
    (X q gq gk : 'M_(N, n)) z (t : 'I_N) :
  row t (linear_attention q X gq gk E W0^T z 0 false) =
  row t q *m (W0 + \sum_(i < N | (i <= t)%N) (row i E)^T *m row i X)^T.
Proof.
rewrite rowK /num /S_at [(_ + _)^T]linearD /= linear_sum; congr (_ *m (_ + _)).
under eq_bigl do rewrite /seen maxn0 ltnS.
by apply: eq_bigr => s _; rewrite /= trmx_mul trmxK.
Qed.

(* The history of k steps, one below the other, the last step first.          *)
Fixpoint total (b : nat -> nat) k :=
  if k is k'.+1 then (b k' + total b k')%N else 0%N.

Fixpoint history (b : nat -> nat) d (X : forall k, 'M[F]_(b k, d)) k :
    'M[F]_(total b k, d) :=
  if k is k'.+1 then col_mx (X k') (history X k') else 0.

Variables (b : nat -> nat) (X : forall k, 'M[F]_(b k, n)) (eta : nat -> F).

(* Irie et al., for gradient descent of any number of steps, for losses of    *)
(* degree at most 2 along lines: if step i reads the batch X_i, and D_i is    *)
(* the gradient of its loss by the outputs of the layer, then W_k q is W_0 q  *)
(* plus attention of q to all the inputs of all the steps, with the error     *)
(* signals - eta_i D_i as values.  Losses, rates and sizes of the batches may *)
(* change from step to step.  irie_lsq is an instance.                        *)
Theorem irie_descent (l : forall k, 'M[F]_(b k, m) -> F)
    (D : forall k, 'M[F]_(b k, m)) (W : nat -> 'M[F]_(m, n)) :
  forall (H_signal : forall k, is_grad (l k) (X k *m (W k)^T) (D k))
    (H_step : forall k,
       gd_step (fun V => l k (X k *m V^T)) (eta k) (W k) (W k.+1))
    k M (q : 'M_(M, n)),
  q *m (W k)^T = q *m (W 0%N)^T +
    attend_to q (history X k) (history (fun i => - eta i *: D i) k).
Proof.
move=> H_signal H_step k M q; elim: k => [|k IH].
  by rewrite attendE mulmx0 mulmx0 addr0.
rewrite (gd_stepE (grad_linear (H_signal k)) (H_step k)) attend_col addrCA -IH.
rewrite attendE -scaleNr linearD linearZ /= trmx_mul trmxK mulmxDr addrC.
by rewrite -!scalemxAr.
Qed.
End DualForm.

(* The biases of a converted prompt.                                          *)

(* What convert leaves in a layer is one gradient step, of rate 1 from the    *)
(* biases before, on the losses - sum_j (R_{p+j} k_j)^T S v_j and - sum_j     *)
(* (R_{p+j} k_j)^T z, turned back by the length of the prompt (our reading of *)
(* Theorem 4.5 of Chen et al.).  Here for the first layer of any transformer; *)
(* the layers behind it are converted alike, with their own inputs            *)
(* (conversion.convert_block).  Any b has such a step: a linear loss has a    *)
(* gradient everywhere (grad_inner).                                          *)
Theorem convert_gd_step d d' e (l : layer F d d') (next : transformer F d' e)
    (b : biases (Block l next)) p P M (prompt : 'M[F]_(M, d)) g S1 z1 :
  let k := turned (R_num l) p (each (phi_k g) prompt) in
  let gk := turned (R_den l) p (each (phi_k g) prompt) in
  let v := each (value g) prompt in
  forall (H_S : gd_step (fun S => - \sum_(j < M)
           (row j k *m S *m (row j v)^T) 0 0) 1 (b.1 g).1 S1)
    (H_z : gd_step (fun z => - \sum_(j < M) (row j gk *m z) 0 0)
           1 (b.1 g).2 z1),
  (convert p P b prompt).1 g = (R_num l (- M%:Z) *m S1, R_den l (- M%:Z) *m z1).
Proof.
move=> k gk v.
have one : const_mx 1 = 1%:M :> 'M[F]_1.
  by apply/matrixP => i j; rewrite !ord1 !mxE.
have gS : is_grad (fun S => - \sum_(j < M) (row j k *m S *m (row j v)^T) 0 0)
    (b.1 g).1 (- 1 *: (k^T *m v)).
  by apply: eq_grad (grad_inner _ _ _) => S; rewrite inner_outer mulN1r.
have gz : is_grad (fun z => - \sum_(j < M) (row j gk *m z) 0 0) (b.1 g).2
    (- 1 *: (gk^T *m const_mx 1)).
  apply: eq_grad (grad_inner _ _ _) => z; rewrite inner_outer mulN1r.
  congr (- _); apply: eq_bigr => j _; rewrite row_const trmx_const.
  by rewrite one mulmx1.
move=> /(gd_stepE gS) -> /(gd_stepE gz) ->.
rewrite !ffunE /shift /= !scale1r !scaleN1r !opprK -!sum_outer.
congr (_, _ *m (_ + _)); apply: eq_bigr => j _.
by rewrite row_const one mulmx1.
Qed.

(* Least squares: 1/(2N) sum_i |W x_i - y_i|^2.                               *)

Definition lsq m n N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) (W : 'M[F]_(m, n)) :=
  (2%:R * N%:R)^-1 * \sum_(i < N) \sum_(a < m) (X *m W^T - Y) i a ^+ 2.

Lemma lsq_out N m (Y O : 'M[F]_(N, m)) :
  is_grad (fun O => (2%:R * N%:R)^-1 * inner (O - Y) (O - Y)) O
    (N%:R^-1 *: (O - Y)).
Proof. by have := grad_sqr (2%:R * N%:R)^-1 Y O; rewrite invfM mulVKf. Qed.

Lemma lsqE m n N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) W :
  (2%:R * N%:R)^-1 * inner (X *m W^T - Y) (X *m W^T - Y) = lsq X Y W.
Proof.
by congr (_ * _); rewrite inner_sum; do 2!apply: eq_bigr => ? _.
Qed.

Lemma lsq_grad m n N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) W :
  is_grad (lsq X Y) W (N%:R^-1 *: ((X *m W^T - Y)^T *m X)).
Proof.
have := grad_linear (lsq_out Y (X *m W^T)); rewrite linearZ /= -scalemxAl.
by apply: eq_grad; apply: lsqE.
Qed.

Lemma lsq_step m n N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) eta W W1 :
  gd_step (lsq X Y) eta W W1 ->
  W1 = W - (eta / N%:R) *: ((X *m W^T - Y)^T *m X).
Proof. by move=> /(gd_stepE (lsq_grad X Y W)); rewrite scalerA. Qed.

(* W_0, W_1, ... of gradient descent on least squares; so the hypotheses of   *)
(* the theorems on gradient descent can be satisfied, for all data.           *)
Fixpoint descent m n N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m))
    (eta : nat -> F) W0 i :=
  if i is i'.+1 then
    let W := descent X Y eta W0 i' in
    W - (eta i' / N%:R) *: ((X *m W^T - Y)^T *m X)
  else W0.

Lemma descent_step m n N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) eta W0 i :
  gd_step (lsq X Y) (eta i) (descent X Y eta W0 i) (descent X Y eta W0 i.+1).
Proof. by eexists; [exact: lsq_grad | rewrite scalerA]. Qed.

(* The dual form of gradient descent on least squares, k steps on the same N  *)
(* examples: k N keys and values.                                             *)
Corollary irie_lsq m n N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) eta W0 k M
    (q : 'M[F]_(M, n)) :
  let W := descent X Y eta W0 in
  let E i := - eta i *: (N%:R^-1 *: (X *m (W i)^T - Y)) in
  q *m (W k)^T = q *m W0^T +
    attend_to q (history (b := fun=> N) (fun=> X) k) (history E k).
Proof.
move=> W E; apply: (irie_descent (l := fun _ O =>
  (2%:R * N%:R)^-1 * inner (O - Y) (O - Y)) (W := W)) => i.
  exact: lsq_out.
by apply: eq_step (descent_step _ _ _ _ _) => V; rewrite lsqE.
Qed.
End Gradient.

(* In an extension K of F, by f, the gradients are the same.                  *)
Section Extended.
Variables (F K : fieldType) (f : {rmorphism F -> K}) (m n : nat).
Local Notation "A ^f" := (map_mx f A) : ring_scope.

Lemma extended_inner a (A W : 'M[F]_(m, n)) :
  is_grad (fun V => f a * inner (A^f) V) (W^f) ((a *: A)^f).
Proof. by rewrite map_mxZ; apply: grad_inner. Qed.

Lemma extended_sqr c (Y W : 'M[F]_(m, n)) :
  is_grad (fun V => f c * inner (V - Y^f) (V - Y^f)) (W^f)
    (((2%:R * c) *: (W - Y))^f).
Proof. by rewrite map_mxZ rmorphM rmorph_nat map_mxB; apply: grad_sqr. Qed.

Lemma extended_lsq N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) W :
  forall (H_two : 2%:R != 0 :> F),
  is_grad (lsq (X^f) (Y^f)) (W^f)
    ((N%:R^-1 *: ((X *m W^T - Y)^T *m X))^f).
Proof.
move=> H_two; rewrite map_mxZ fmorphV rmorph_nat map_mxM -map_trmx map_mxB.
rewrite map_mxM -map_trmx; apply: lsq_grad.
by rewrite -(rmorph_nat f) fmorph_eq0.
Qed.
End Extended.
