(* Linear self-attention does gradient descent (von Oswald et al. 2023), and  *)
(* ICLCA keeps it: the biases made of a prompt of examples are the gradient   *)
(* steps.                                                                     *)
(*                                                                            *)
(*   N, X, Y          the context: N examples, each one token, the row        *)
(*                    [x_j, y_j]; scalar targets are m = 1                    *)
(*   Xq               queries; a query enters as [x, - W_0 x]                 *)
(*   W_0, W_i         weights before, and after i gradient steps on           *)
(*                    1/(2N) sum_j |W x_j - y_j|^2; a row x goes to x *m W^T  *)
(*   eta              the rate, eta_i in step i                               *)
(*   W_QK W_V         W_K = W_Q = [[I,0],[0,0]], W_V = [[0,0],[W_0,-I]]       *)
(*   rate             eta / N, of the paper P = (eta/N) I; P is the mask here *)
(*   lsa_layer        linear self-attention with a residual, as a layer of    *)
(*                    conversion.v; matrices act on columns, as in the paper  *)
(*                    (the program would hold their transposes)               *)
(*   lsa E Z          what it makes of tokens Z that read the tokens E only   *)
(*   stack            layers one behind the other                             *)
(*   ask              queries that read the biases of all layers, and neither *)
(*                    themselves nor each other                               *)
(* H_two: 2 != 0 in F.  MathComp's x / 0 is 0: for N = 0 in F loss, step and  *)
(* layer are all without effect, and the equalities hold; a program that      *)
(* divides by N refuses such an N.                                            *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention conversion gradient.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section VonOswald.
Variable F : fieldType.

(* Linear self-attention.                                                     *)

Lemma each_mul n d e (A : 'M[F]_(d, e)) (X : 'M_(n, d)) :
  each (fun x => x *m A) X = X *m A.
Proof. by apply/row_matrixP => t; rewrite rowK row_mul. Qed.

(* A transformer without biases.                                              *)
Fixpoint zero d e (T : transformer F d e) : biases T :=
  match T with
  | Stop _ => tt
  | Block _ _ _ l next => (no_bias l, zero next)
  end.

Section SelfAttention.
Variables (d : nat) (W_K W_Q W_V proj : 'M[F]_d).

Definition lsa_layer : layer F d d :=
  @Layer F d d 1 1 d d (fun=> ord0) (fun _ e => e *m W_Q^T)
    (fun _ e => e *m W_K^T) (fun _ e => e *m W_V^T)
    (no_rotation F d) (no_rotation F d) false
    (fun e o => e + row 0 o *m proj^T).

(* Queries that read biases, and not themselves.                              *)
Definition read (b : layer_biases lsa_layer) M (Z : 'M[F]_(M, d)) :=
  Z + Z *m W_Q^T *m (b ord0).1 *m proj^T.

(* The same for the biases that the tokens E leave (read_absorb).             *)
Definition lsa N (E : 'M[F]_(N, d)) M (Z : 'M[F]_(M, d)) :=
  Z + attend_to (Z *m W_Q^T) (E *m W_K^T) (E *m W_V^T) *m proj^T.

Lemma read_absorb p N (E : 'M[F]_(N, d)) M (Z : 'M[F]_(M, d)) :
  read (absorb_layer (no_bias lsa_layer) p E) Z = lsa E Z.
Proof.
rewrite /read /lsa !ffunE state_KV add0r /= !each_mul turned_no attendE.
by rewrite mulmxA.
Qed.

(* If all see all, the tokens E become lsa E E.                               *)
Lemma run_lsa p P N (E : 'M[F]_(N, d)) : (N <= P)%N ->
  run_layer (no_bias lsa_layer) p P E = lsa E E.
Proof.
move=> H_P; apply/row_matrixP => t; rewrite rowK /= rowK /attention.
rewrite !ffunE linear_attention_full //= !turned_no !each_mul mulmx0 add0r.
by rewrite linearD /= row_mul.
Qed.

(* Queries whose values are 0 may stand among the keys.                       *)
Lemma run_lsa_query p P N M (E : 'M[F]_(N, d)) (Z : 'M[F]_(M, d)) :
  (N <= P)%N -> Z *m W_V^T = 0 ->
  run_layer (no_bias lsa_layer) p P (col_mx E Z) =
  col_mx (lsa E E) (lsa E Z).
Proof.
move=> H_P H_Z; have -> : col_mx (lsa E E) (lsa E Z) = lsa E (col_mx E Z).
  rewrite /lsa !attendE -add_col_mx; congr (_ + _).
  by rewrite !mul_col_mx.
apply/row_matrixP => t; rewrite rowK /= rowK /attention /lsa linearD /= row_mul.
congr (_ + _ *m _); rewrite rowK /num /S_at !ffunE /= !turned_no !each_mul.
rewrite attendE !row_mul add0r -sum_outer big_mkcond big_split_ord /=.
rewrite [X in _ + X]big1 ?addr0 => [|s _].
  congr (_ *m _); apply: eq_bigr => s _.
  rewrite !row_mul !rowKu /seen (leq_trans (ltn_ord s)) //.
  exact: leq_trans H_P (leq_maxr _ _).
by rewrite [row _ (_ *m W_V^T)]row_mul rowKd -row_mul H_Z row0 mulmx0 if_same.
Qed.

(* Tokens that are 0 neither read nor are read.                               *)
Lemma lsa_zero_rows B N (E : 'M[F]_(N, d)) :
  let Z := col_mx (0 : 'M_(B, d)) E in lsa Z Z = col_mx 0 (lsa E E).
Proof.
rewrite /lsa !attendE !mul_col_mx !mul0mx tr_col_mx trmx0 mul_row_col mul0mx.
by rewrite add0r add_col_mx addr0.
Qed.
End SelfAttention.

(* Proposition 1.                                                             *)

Hypothesis H_two : 2%:R != 0 :> F.

Section Prop1.
Variables (n m : nat) (W0 : 'M[F]_(m, n)).

Definition W_QK : 'M[F]_(n + m) := block_mx 1%:M 0 0 0.
Definition W_V : 'M[F]_(n + m) := block_mx 0 0 W0 (- 1%:M).
Definition gd_layer rate := lsa_layer W_QK W_QK W_V rate%:M.

Lemma keys N (X : 'M[F]_(N, n)) (Y : 'M_(N, m)) :
  row_mx X Y *m W_QK^T = row_mx X 0.
Proof.
by rewrite tr_block_mx mul_row_block !trmx0 trmx1 !mulmx0 mulmx1 !addr0.
Qed.

Lemma values N (X : 'M[F]_(N, n)) (Y : 'M_(N, m)) :
  row_mx X Y *m W_V^T = row_mx 0 (X *m W0^T - Y).
Proof.
rewrite tr_block_mx mul_row_block linearN /= !trmx0 trmx1 !mulmx0 mulmxN mulmx1.
by rewrite !addr0.
Qed.

Lemma lsa_gd rate N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) M
    (Xq : 'M[F]_(M, n)) (Yq : 'M[F]_(M, m)) :
  lsa W_QK W_QK W_V rate%:M (row_mx X Y) (row_mx Xq Yq) =
  row_mx Xq (Yq + rate *: (Xq *m (X^T *m (X *m W0^T - Y)))).
Proof.
rewrite /lsa attendE !keys values tr_row_mx trmx0 mul_col_row mul_row_block.
rewrite !mulmx0 !mul0mx !addr0 tr_scalar_mx mul_mx_scalar scale_row_mx scaler0.
by rewrite add_row_mx addr0.
Qed.

Section Context.
Variables (N : nat) (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)).

(* Proposition 1, for any W_0: one layer moves the y of every token, context  *)
(* or query, by minus the change of its prediction that one gradient step     *)
(* causes.                                                                    *)
Theorem von_oswald_prop1 eta W1 M (Xq : 'M[F]_(M, n)) (Yq : 'M[F]_(M, m)) :
  forall (H_step : gd_step (lsq X Y) eta W0 W1),
  lsa W_QK W_QK W_V (eta / N%:R)%:M (row_mx X Y) (row_mx Xq Yq) =
  row_mx Xq (Yq - Xq *m (W1 - W0)^T).
Proof.
move=> /(lsq_step H_two) ->; rewrite lsa_gd [_ - _ - W0]addrAC subrr add0r.
rewrite [(- _)^T]linearN /= linearZ /= mulmxN opprK trmx_mul trmxK.
by rewrite -scalemxAr.
Qed.

(* The prediction W_1 x is minus the y-entry of a query that entered with     *)
(* -W_0 x.                                                                    *)
Corollary von_oswald_prediction eta W1 M (Xq : 'M[F]_(M, n)) :
  forall (H_step : gd_step (lsq X Y) eta W0 W1),
  lsa W_QK W_QK W_V (eta / N%:R)%:M (row_mx X Y) (row_mx Xq (- (Xq *m W0^T))) =
  row_mx Xq (- (Xq *m W1^T)).
Proof.
move=> /von_oswald_prop1 ->; congr row_mx.
by rewrite linearB /= mulmxBr opprB addKr.
Qed.

(* Depth.  Layers i, ..., i+k-1, all with the same W_K, W_Q and W_V.  With    *)
(* eta constant the layers are tied: one layer in a loop; with eta_i =        *)
(* lambda_i eta, a loop with dampening lambda_i.                              *)
Variable eta : nat -> F.

Fixpoint stack i k : transformer F (n + m) (n + m) :=
  if k is k'.+1 then Block (gd_layer (eta i / N%:R)) (stack i.+1 k')
  else Stop F (n + m).

Fixpoint ask i k : biases (stack i k) ->
    forall M, 'M[F]_(M, n + m) -> 'M[F]_(M, n + m) :=
  if k is k'.+1 then fun b M Z => ask b.2 (read b.1 Z) else fun _ _ Z => Z.

(* The x,y block of b_KV of every layer.                                      *)
Fixpoint xy_blocks i k : biases (stack i k) -> seq 'M[F]_(n, m) :=
  if k is k'.+1 then fun b => ursubmx (b.1 ord0).1 :: xy_blocks b.2
  else fun _ => [::].

Lemma shift_stack by' i k (b : biases (stack i k)) : shift_all by' b = b.
Proof.
elim: k i b => [|k IH] i //= [b bs]; rewrite IH; congr pair.
by apply/ffunP => g; rewrite ffunE /shift /= !mul1mx; case: (b g).
Qed.

Variable W : nat -> 'M[F]_(m, n).
Hypothesis H_descent : forall i, gd_step (lsq X Y) (eta i) (W i) (W i.+1).

(* The context when it enters layer i.                                        *)
Definition context i := row_mx X (Y - X *m (W i - W0)^T).

Lemma residual i : X *m W0^T - (Y - X *m (W i - W0)^T) = X *m (W i)^T - Y.
Proof. by rewrite opprB addrA -mulmxDr -linearD /= [W0 + _]addrC subrK. Qed.

Lemma lsa_stack i M (Xq : 'M[F]_(M, n)) (Yq : 'M[F]_(M, m)) :
  lsa W_QK W_QK W_V (eta i / N%:R)%:M (context i) (row_mx Xq Yq) =
  row_mx Xq (Yq - Xq *m (W i.+1 - W i)^T).
Proof.
rewrite (lsq_step H_two (H_descent i)) [_ - _ - W i]addrAC subrr add0r /context.
rewrite lsa_gd [(- _)^T]linearN /= linearZ /= mulmxN opprK trmx_mul trmxK.
by rewrite -scalemxAr residual.
Qed.

Variables (p : int) (P : nat).
Hypothesis H_P : (N <= P)%N.

(* Under a mask that lets the examples see each other (P >= N), k layers make *)
(* k gradient steps on the context: its y become the residuals (for W_0 = 0). *)
Theorem stack_context i k :
  run p P (zero (stack i k)) (context i) = context (i + k).
Proof.
elim: k i => [|k IH] i; first by rewrite addn0.
rewrite addnS -addSn -IH /= run_lsa //; congr (run _ _ _ _).
rewrite {2}/context lsa_stack -addrA -opprD -mulmxDr -linearD /=.
by rewrite [_ - W0 + _]addrC addrA subrK.
Qed.

Lemma stack_ask i k M (Xq : 'M[F]_(M, n)) :
  ask (absorb p P (zero (stack i k)) (context i))
    (row_mx Xq (- (Xq *m (W i)^T))) =
  row_mx Xq (- (Xq *m (W (i + k))^T)).
Proof.
elim: k i => [|k IH] i; first by rewrite addn0.
rewrite addnS -addSn -IH /= read_absorb lsa_stack run_lsa //.
have -> : lsa W_QK W_QK W_V (eta i / N%:R)%:M (context i) (context i) =
    context i.+1.
  by have := stack_context i 1; rewrite addn1 /= run_lsa.
by rewrite -opprD -mulmxDr -linearD /= addrC subrK.
Qed.

Lemma stack_blocks i k j : (j < k)%N ->
  - (eta (i + j) / N%:R) *:
    (nth 0 (xy_blocks (absorb p P (zero (stack i k)) (context i))) j)^T =
  W (i + j).+1 - W (i + j).
Proof.
elim: k i j => [//|k IH] i [_|j] /=; last first.
  have -> : run_layer (no_bias (gd_layer (eta i / N%:R))) p P (context i) =
      context i.+1 by have := stack_context i 1; rewrite addn1.
  by rewrite ltnS addnS -addSn; apply: IH.
rewrite addn0 !ffunE state_KV add0r /= turned_no !each_mul.
rewrite (lsq_step H_two (H_descent i)) [_ - _ - W i]addrAC subrr add0r /context.
rewrite keys values tr_row_mx trmx0 mul_col_row block_mxKur.
by rewrite residual scaleNr trmx_mul trmxK.
Qed.

(* k layers are k gradient steps: the prompt of examples, converted under     *)
(* such a mask, leaves biases from which a query (x, - W_0 x) reads - W_k x.  *)
(* Any W_0, any rates; H_descent has an instance for all data (descent_step). *)
Theorem von_oswald_deep k M (Xq : 'M[F]_(M, n)) (H_W0 : W 0%N = W0) :
  ask (convert p P (zero (stack 0 k)) (row_mx X Y))
    (row_mx Xq (- (Xq *m W0^T))) = row_mx Xq (- (Xq *m (W k)^T)).
Proof.
have := stack_ask 0 k Xq; rewrite /convert shift_stack /context.
by rewrite H_W0 subrr trmx0 mulmx0 subr0.
Qed.

(* These biases are the steps: in layer j, - (eta_j / N) (the x,y block of    *)
(* b_KV)^T = W_{j+1} - W_j.                                                   *)
Theorem von_oswald_biases k j (H_W0 : W 0%N = W0) (H_j : (j < k)%N) :
  - (eta j / N%:R) *:
    (nth 0 (xy_blocks (convert p P (zero (stack 0 k)) (row_mx X Y))) j)^T =
  W j.+1 - W j.
Proof.
have := stack_blocks 0 H_j; rewrite /convert shift_stack /context.
by rewrite H_W0 subrr trmx0 mulmx0 subr0.
Qed.
End Context.
End Prop1.

Lemma sum_row0 N n m (A : pred 'I_N) (f : 'I_N -> 'rV[F]_m) :
  row_mx (0 : 'rV_n) (\sum_(s | A s) f s) = \sum_(s | A s) row_mx 0 (f s).
Proof.
by elim/big_rec2: _ => [|s u v _ <-]; rewrite ?row_mx0 // add_row_mx addr0.
Qed.

(* One layer under any mask.                                                  *)
Lemma run_gd_masked n m (W0 : 'M[F]_(m, n)) rate p P N (X : 'M[F]_(N, n))
    (Y : 'M[F]_(N, m)) :
  run_layer (no_bias (gd_layer W0 rate)) p P (row_mx X Y) =
  row_mx X (\matrix_t (row t Y + rate *: \sum_(s < N | seen P t s)
    row t X *m (row s X)^T *m (row s X *m W0^T - row s Y))).
Proof.
apply/row_matrixP => t; rewrite rowK /= rowK /attention rowK /=.
rewrite /num /S_at !ffunE !turned_no !each_mul add0r keys values.
rewrite !row_row_mx row0 rowK mulmx_sumr tr_scalar_mx mul_mx_scalar.
have -> : row_mx (row t X) (row t Y + rate *: \sum_(s < N | seen P t s)
    row t X *m (row s X)^T *m (row s X *m W0^T - row s Y)) =
  row_mx (row t X) (row t Y) + rate *: \sum_(s < N | seen P t s)
    row_mx 0 (row t X *m (row s X)^T *m (row s X *m W0^T - row s Y)).
  by rewrite -sum_row0 scale_row_mx scaler0 add_row_mx addr0.
congr (_ + _ *: _); apply: eq_bigr => s _.
rewrite !row_row_mx !row0 tr_row_mx trmx0 mul_col_row mul_row_block !mul0mx.
by rewrite !mulmx0 !addr0 mulmxA linearB /= row_mul.
Qed.

(* The query among the keys.                                                  *)

(* For W_0 = 0 and one layer queries may stand among the keys, any number of  *)
(* them, whether or not the context sees them.                                *)
Theorem query_harmless n m N (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) eta W1 p P M
    (Xq : 'M[F]_(M, n)) :
  forall (H_P : (N <= P)%N) (H_step : gd_step (lsq X Y) eta 0 W1),
  run_layer (no_bias (gd_layer 0 (eta / N%:R))) p P
    (col_mx (row_mx X Y) (row_mx Xq 0)) =
  col_mx (row_mx X (Y - X *m W1^T)) (row_mx Xq (- (Xq *m W1^T))).
Proof.
move=> H_P H_step; rewrite run_lsa_query //; last first.
  by rewrite values trmx0 mulmx0 subr0 row_mx0.
by rewrite !(von_oswald_prop1 _ _ H_step) subr0 sub0r.
Qed.

(* In general a query (x, y) among the keys adds to its own y the term rate   *)
(* |x|^2 (W_0 x - y), under any mask.                                         *)
Theorem query_own_term n m (W0 : 'M[F]_(m, n)) rate p P N (X : 'M[F]_(N, n))
    (Y : 'M[F]_(N, m)) (x : 'rV[F]_n) (y : 'rV[F]_m) :
  dsubmx (run_layer (no_bias (gd_layer W0 rate)) p P
    (col_mx (row_mx X Y) (row_mx x y))) =
  lsa (W_QK n m) (W_QK n m) (W_V W0) rate%:M (row_mx X Y) (row_mx x y) +
  row_mx 0 (rate *: (x *m x^T *m (x *m W0^T - y))).
Proof.
rewrite -block_mxEv block_mxEh run_gd_masked lsa_gd add_row_mx addr0.
apply/row_matrixP => i; rewrite ord1 row_dsubmx row_row_mx rowK.
rewrite !rowKd !row_id; congr row_mx.
rewrite -addrA -scalerDr; congr (_ + _ *: _).
rewrite (eq_bigl xpredT) => [|s]; last first.
  by rewrite /seen leq_max /= addn0 -[N.+1]addn1 ltn_ord.
rewrite big_split_ord big_ord1 /= !rowKd !row_id; congr (_ + _).
rewrite -sum_outer mulmx_sumr; apply: eq_bigr => s _.
by rewrite !rowKu mulmxA [row s (_ - _)]linearB /= row_mul.
Qed.

(* GD++ (W_0 = 0): the inputs are moved too.                                  *)

Section GDpp.
Variables (n m N : nat) (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)) (gamma : F).

(* The weights W_V = -I and P = [[gamma I, 0], [0, (eta/N) I]] (our choice of *)
(* weights) make one gradient step and x -> (I - gamma sum_j x_j x_j^T) x.    *)
Theorem gdpp_layer eta W1 M (Xq : 'M[F]_(M, n)) (Yq : 'M[F]_(M, m)) :
  forall (H_step : gd_step (lsq X Y) eta 0 W1),
  lsa (W_QK n m) (W_QK n m) (- 1%:M)
    (block_mx gamma%:M 0 0 (eta / N%:R)%:M) (row_mx X Y) (row_mx Xq Yq) =
  row_mx (Xq *m (1%:M - gamma *: (X^T *m X))) (Yq - Xq *m W1^T).
Proof.
move=> /(lsq_step H_two) ->; rewrite /lsa attendE !keys linearN /= trmx1.
rewrite mulmxN mulmx1 opp_row_mx tr_row_mx trmx0 mul_col_row mul_row_block.
rewrite tr_block_mx !tr_scalar_mx !trmx0 !mulmx0 !mul0mx !addr0 mul_row_block.
rewrite !mulmx0 addr0 add0r !mul_mx_scalar add_row_mx; congr row_mx.
  by rewrite !mulmxN mulmxBr mulmx1 scalerN -scalemxAr.
rewrite !sub0r [(- (_ *: _))^T]linearN /= linearZ /= trmx_mul.
by rewrite trmxK !mulmxN !scalerN mulmxN opprK -scalemxAr.
Qed.

Let C := X^T *m X.
Let X' := X *m (1%:M - gamma *: C).

(* What that makes of C = sum_j x_j x_j^T.                                    *)
Theorem gdpp_gram :
  X'^T *m X' = (1%:M - gamma *: C) *m C *m (1%:M - gamma *: C).
Proof.
rewrite /X' trmx_mul linearB linearZ /= trmx1 trmx_mul trmxK -/C.
by rewrite !mulmxA.
Qed.

(* An eigenvector of C with eigenvalue l is one of the new C, with eigenvalue *)
(* l (1 - gamma l)^2.  (For X = 1 every u has l = 1.)                         *)
Theorem gdpp_spectrum l (u : 'rV[F]_n) (H_l : u *m C = l *: u) :
  u *m (X'^T *m X') = (l * (1 - gamma * l) ^+ 2) *: u.
Proof.
have step : u *m (1%:M - gamma *: C) = (1 - gamma * l) *: u.
  by rewrite mulmxBr mulmx1 -scalemxAr H_l scalerA scalerBl scale1r.
rewrite gdpp_gram mulmxA [u *m (_ *m C)]mulmxA step -[_ *m C]scalemxAl H_l.
rewrite -!scalemxAl step !scalerA.
by rewrite mulrAC -expr2 mulrC.
Qed.
End GDpp.

(* Proposition 2: a token-wise map f of the inputs in front, here a layer     *)
(* without heads.                                                             *)

Section Front.
Variables (n' n m : nat) (f : 'rV[F]_n' -> 'rV[F]_n).

Definition front : layer F (n' + m) (n + m) :=
  @Layer F (n' + m) (n + m) 0 0 0 0 id (fun _ _ => 0) (fun _ _ => 0)
    (fun _ _ => 0) (no_rotation F 0) (no_rotation F 0) false
    (fun e _ => row_mx (f (lsubmx e)) (rsubmx e)).

Lemma run_front (b : layer_biases front) p P N (X : 'M[F]_(N, n'))
    (Y : 'M[F]_(N, m)) :
  run_layer b p P (row_mx X Y) = row_mx (each f X) Y.
Proof.
apply/row_matrixP => t; rewrite rowK /= !row_row_mx row_mxKl row_mxKr.
by rewrite rowK.
Qed.

(* With f in front, the layers descend on the examples (f (x_j), y_j).        *)
Theorem von_oswald_prop2 N (X : 'M[F]_(N, n')) (Y : 'M[F]_(N, m)) eta W0
    (W : nat -> 'M[F]_(m, n)) p P k M (Xq : 'M[F]_(M, n')) :
  forall (H_P : (N <= P)%N) (H_W0 : W 0%N = W0) (H_descent : forall i,
    gd_step (lsq (each f X) Y) (eta i) (W i) (W i.+1)),
  let b := convert p P (zero (Block front (stack W0 N eta 0 k))) (row_mx X Y) in
  ask b.2 (row_mx (each f Xq) (- (each f Xq *m W0^T))) =
  row_mx (each f Xq) (- (each f Xq *m (W k)^T)).
Proof.
move=> H_P H_W0 H_descent /=; rewrite run_front.
exact: (von_oswald_deep H_descent).
Qed.
End Front.

(* Proposition 3: one layer of attention makes tokens [x_j, y_j] of separate  *)
(* ones.  The paper shows that this is possible; the construction here is     *)
(* ours.  Token x_j is [x_j, 0] with position [e_j, 0], token y_j is [0, y_j] *)
(* with position [0, e_j], e_j one-hot.  With position [a, b] the query is b  *)
(* - a and the key a, the value is the content: token y_j takes x_j up, token *)
(* x_j takes itself away.  The positions are dropped at the end.  All x come  *)
(* before all y; that y_j comes after x_j is all that is used, so a causal    *)
(* mask will do for this layer.                                               *)

Section Pairs.
Variables (n m N : nat) (X : 'M[F]_(N, n)) (Y : 'M[F]_(N, m)).

Definition pairing : layer F ((n + m) + (N + N)) (n + m) :=
  @Layer F _ _ 1 1 N (n + m) (fun=> ord0)
    (fun _ e => rsubmx (rsubmx e) - lsubmx (rsubmx e))
    (fun _ e => lsubmx (rsubmx e)) (fun _ e => lsubmx e)
    (no_rotation F N) (no_rotation F N) false (fun e o => lsubmx e + row 0 o).

Definition separate : 'M[F]_(N + N, (n + m) + (N + N)) :=
  col_mx (row_mx (row_mx X 0) (row_mx 1%:M 0))
         (row_mx (row_mx 0 Y) (row_mx 0 1%:M)).

Lemma pick w P (t : 'I_(N + N)) (j : 'I_N) (v v' : 'M[F]_(N, w)) : seen P t j ->
  delta_mx 0 j *m (\sum_(s < N + N | seen P t s)
    (row s (col_mx 1%:M 0))^T *m row s (col_mx v v')) = row j v.
Proof.
move=> H_j; rewrite mulmx_sumr big_mkcond big_split_ord /=.
rewrite [X in _ + X]big1 ?addr0 => [|s _]; last first.
  by rewrite rowKd row0 trmx0 mul0mx mulmx0 if_same.
rewrite (bigD1 j) //= H_j big1 ?addr0 => [|s /negPf H_s].
  rewrite !rowKu row1 trmx_delta mulmxA mul_delta_mx -rowE.
  by apply/rowP => a; rewrite !mxE.
rewrite !rowKu row1 trmx_delta mulmxA mul_delta_mx_cond eq_sym H_s mul0mx.
exact: if_same.
Qed.

(* Under every mask the y-tokens become [x_j, y_j], and the x-tokens 0.       *)
Theorem pairing_layer p P :
  run_layer (no_bias pairing) p P separate = col_mx 0 (row_mx X Y).
Proof.
have K : each (fun e => lsubmx (rsubmx e)) separate = col_mx 1%:M 0.
  apply/row_matrixP => t; rewrite rowK; case: (split_ordP t) => j ->.
    by rewrite !rowKu !row_row_mx !(row_mxKl, row_mxKr).
  by rewrite !rowKd !row_row_mx !(row_mxKl, row_mxKr).
have V : each (fun e : 'rV_((n + m) + (N + N)) => lsubmx e) separate =
    col_mx (row_mx X 0) (row_mx 0 Y).
  apply/row_matrixP => t; rewrite rowK; case: (split_ordP t) => j ->.
    by rewrite !rowKu !row_row_mx row_mxKl.
  by rewrite !rowKd !row_row_mx row_mxKl.
apply/row_matrixP => t; rewrite rowK /= rowK /attention rowK /num /S_at !ffunE.
rewrite /= !turned_no K V rowK add0r; case: (split_ordP t) => j ->.
  rewrite !rowKu !row_row_mx row0 row_mxKl row_mxKr row_mxKl row_mxKr row1 row0.
  by rewrite sub0r mulNmx pick ?row_row_mx ?row0 ?subrr // /seen leq_max leqnn.
rewrite !rowKd !row_row_mx row0 row_mxKl row_mxKr row_mxKl row_mxKr row1 row0.
rewrite subr0 pick ?row_row_mx ?row0 ?add_row_mx ?addr0 ?add0r //.
by rewrite /seen leq_max ltnS (leq_trans (ltnW (ltn_ord j))) ?leq_addr.
Qed.

(* Tokens that are 0 change nothing in the layers behind.                     *)
Lemma absorb_zero_rows W0 c eta i k p P A (E : 'M[F]_(A, n + m)) B :
  (B + A <= P)%N ->
  absorb p P (zero (stack W0 c eta i k)) (col_mx (0 : 'M_(B, n + m)) E) =
  absorb p P (zero (stack W0 c eta i k)) E.
Proof.
move=> H_P; elim: k i A E H_P => [//|k IH] i A E H_P /=; congr pair.
  apply/ffunP => g; rewrite !ffunE /= !turned_no !each_mul !mul_col_mx.
  rewrite !mul0mx /state_after !big_split_ord /= !add0r.
  rewrite big1 ?add0r => [|s _]; last by rewrite rowKu row0 trmx0 mul0mx.
  rewrite [X in (_, X + _)]big1 ?add0r => [|s _]; last first.
    by rewrite rowKu row0 trmx0.
  by congr pair; apply: eq_bigr => s _; rewrite !rowKd.
rewrite !run_lsa // ?(leq_trans (leq_addl B A)) // lsa_zero_rows; exact: IH.
Qed.

(* So that layer, and k layers behind it, make k gradient steps on examples   *)
(* given as separate tokens.                                                  *)
Theorem von_oswald_prop3 eta W0 (W : nat -> 'M[F]_(m, n)) p P k M
    (Xq : 'M[F]_(M, n)) :
  forall (H_P : (N + N <= P)%N) (H_W0 : W 0%N = W0)
    (H_descent : forall i, gd_step (lsq X Y) (eta i) (W i) (W i.+1)),
  let b := convert p P (zero (Block pairing (stack W0 N eta 0 k))) separate in
  ask b.2 (row_mx Xq (- (Xq *m W0^T))) = row_mx Xq (- (Xq *m (W k)^T)).
Proof.
move=> H_P H_W0 H_descent /=; rewrite pairing_layer shift_stack.
rewrite absorb_zero_rows //.
have := von_oswald_deep H_descent p (leq_trans (leq_addl N N) H_P) k Xq H_W0.
by rewrite /convert shift_stack.
Qed.
End Pairs.
End VonOswald.

(* Witnesses, with numbers: examples x = y = 1, query x = 1.                  *)
Section Witnesses.
Let one N : 'M[rat]_(N, 1) := const_mx 1.
Let H_two : 2%:R != 0 :> rat. Proof. by []. Qed.

Lemma one_one : one 1 = 1%:M.
Proof. by apply/matrixP => i j; rewrite !ord1 !mxE. Qed.

(* A query among the keys does harm for W_0 != 0 already in one layer, under  *)
(* every mask.  Here W_0 = W_1 = 1, and the query leaves with y = 1 instead   *)
(* of -1.                                                                     *)
Theorem query_harms_from_W0 p P :
  gd_step (lsq (one 1) (one 1)) 1 1%:M 1%:M /\
  dsubmx (run_layer (no_bias (gd_layer 1%:M (1 / 1%:R))) p P
    (col_mx (row_mx (one 1) (one 1)) (row_mx (one 1) (- (one 1 *m 1%:M^T))))) <>
  row_mx (one 1) (- (one 1 *m 1%:M^T)).
Proof.
rewrite one_one; have H : gd_step (lsq (1%:M : 'M[rat]_1) 1%:M) 1 1%:M 1%:M.
  eexists; first exact: lsq_grad.
  by rewrite trmx1 mulmx1 subrr trmx0 mul0mx !scaler0 subr0.
split=> //; rewrite query_own_term (von_oswald_prediction H_two _ H).
rewrite add_row_mx => /eq_row_mx [_ /matrixP /(_ 0 0)].
by rewrite !trmx1 !mulmx1 !mxE big_ord1 !mxE => /eqP.
Qed.

(* And for W_0 = 0 in two layers: here W_1 = W_2 = 1, and the query leaves    *)
(* with y = 0 instead of -1.                                                  *)
Theorem query_harms_depth p P (H_P : (0 < P)%N) :
  let W := descent (one 1) (one 1) (fun=> 1) 0 in
  dsubmx (run p P (zero (stack 0 1 (fun=> 1) 0 2))
    (col_mx (row_mx (one 1) (one 1)) (row_mx (one 1) 0))) <>
  row_mx (one 1) (- (one 1 *m (W 2%N)^T)).
Proof.
move=> W; have W1 : W 1%N = 1%:M.
  rewrite /W /= one_one trmx0 mulmx0 mulmx1 !sub0r linearN /= trmx1 divr1.
  by rewrite scale1r opprK.
have W2 : W 2%N = 1%:M.
  rewrite -[LHS]/(W 1%N - (1 / 1%:R) *:
    ((one 1 *m (W 1%N)^T - one 1)^T *m one 1)).
  by rewrite W1 one_one trmx1 mul1mx subrr trmx0 mul0mx scaler0 subr0.
have H1 : gd_step (lsq (one 1) (one 1)) 1 0 (W 1%N).
  exact: (descent_step H_two _ _ (fun=> 1) 0 0%N).
rewrite /= (query_harmless H_two _ _ H_P H1) query_own_term lsa_gd add_row_mx.
rewrite W1 W2 one_one => /eq_row_mx [_ /matrixP /(_ 0 0)].
rewrite !trmx1 trmx0 !mulmx1 mulmx0 subrr subr0 !mulmx0 !mxE big_ord1 !mxE.
by move/eqP.
Qed.

Lemma rate1 : 2%:R / 2%:R = 1 :> rat.
Proof. exact: divff. Qed.

Lemma sum_one (v : 'M[rat]_(2, 1)) : (one 2)^T *m v = (v 0 0 + v 1 0)%:M.
Proof.
apply/matrixP => i j; rewrite !ord1 !mxE big_ord_recl big_ord1 !mxE !mul1r.
by congr (_ + v _ _); apply: val_inj.
Qed.

Lemma causal_first p : row_mx (one 2) (\col_t - t%:R) =
  run_layer (no_bias (gd_layer 0 1)) p 0 (row_mx (one 2) (one 2)).
Proof.
rewrite run_gd_masked; congr row_mx; apply/row_matrixP => t; rewrite rowK.
apply/rowP => j; rewrite ord1 !mxE summxE mul1r.
rewrite (eq_bigr (fun=> - 1)) => [|s _]; last first.
  by rewrite trmx0 mulmx0 sub0r !(mxE, big_ord1) !mul1r.
rewrite big_mkcond big_ord_recl big_ord1 /seen.
case: t => [[|[|//]] H_t] /=; first by rewrite addr0 subrr oppr0.
by rewrite addrA subrr add0r.
Qed.

(* Under a causal mask two layers are not two gradient steps: here, with two  *)
(* examples and eta = 2, W_2 = 0, and the query leaves with y = -1.           *)
Theorem causal_is_not_descent p :
  let W := descent (one 2) (one 2) (fun=> 2%:R) 0 in
  ask (convert p 0 (zero (stack 0 2 (fun=> 2%:R) 0 2)) (row_mx (one 2) (one 2)))
    (row_mx (one 1) (- (one 1 *m (W 0%N)^T))) <>
  row_mx (one 1) (- (one 1 *m (W 2%N)^T)).
Proof.
move=> W; have W1 : W 1%N = 2%:R%:M.
  rewrite /W /= rate1 scale1r trmx0 mulmx0 !sub0r linearN /= mulNmx opprK.
  by rewrite sum_one !mxE.
have W2 : W 2%N = 0.
  rewrite -[LHS]/(W 1%N - (2%:R / 2%:R) *:
    ((one 2 *m (W 1%N)^T - one 2)^T *m one 2)).
  rewrite W1 rate1 scale1r tr_scalar_mx mul_mx_scalar -[X in (_ - X)^T]scale1r.
  by rewrite -scalerBl linearZ /= -scalemxAl sum_one !mxE scale_scalar_mx subrr.
rewrite /convert shift_stack /= rate1 -causal_first !read_absorb !lsa_gd W2.
rewrite !trmx0 !mulmx0 !sub0r !mulmxN !sum_one !mxE => /eq_row_mx [_].
move=> /matrixP /(_ 0 0); rewrite one_one !mul1mx !mxE.
by move/eqP.
Qed.
End Witnesses.
