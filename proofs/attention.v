(* Softmax attention, its KV cache, and ICLAA: reading a prompt from          *)
(* approximate biases.  Mirrors refimpl/attention/softmax_attention.py        *)
(* (softmax_attention, softmax_attention_shifted, KVCache) and memory.py      *)
(* beside it (ICLAA).                                                         *)
(*                                                                            *)
(*   e            any exponential: what is asked of exp is its two equations  *)
(*   c            the scale; score t s = c q_t.k_s                            *)
(*   q k v        n queries, N keys and values, the first M of them from a    *)
(*                cache; a token is a row                                     *)
(*   shown        which keys count (padding)                                  *)
(*   P            the mask, as in linear_attention.v: t sees the keys         *)
(*                s < M + max(t+1, P)                                         *)
(*   mass         the denominator; weighted, the numerator                    *)
(*   k' v'        keys and values of a prompt of M tokens                     *)
(*   fq fk'       features of the queries and of the prompt's keys            *)
(*   b            the biases (b_KV, b_D)                                      *)
(*                                                                            *)
(* MathComp's x / 0 is 0; where a denominator is 0 the program refuses, and   *)
(* each equality of outputs comes with one of denominators.  What the program *)
(* does to rows of padded queries (it puts out 0) is left aside.              *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.Theory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* What softmax asks of exp.  R is where the scores live, F where the weights *)
(* do: the real exp (R = F = the reals) is one, 2^a (R = int, F = rat) is     *)
(* another, made below, and so is x^a for any x != 0 of any field.            *)
Record exponential (R : zmodType) (F : fieldType) := Exponential {
  exp :> R -> F;
  expD : forall a b, exp (a + b) = exp a * exp b;
  exp0 : exp 0 = 1 }.

Section Exponential.
Variables (R : zmodType) (F : fieldType) (e : exponential R F).

Lemma exp_neq0 a : e a != 0.
Proof.
apply/eqP => a0; have /eqP := expD e a (- a).
by rewrite subrr exp0 a0 mul0r oner_eq0.
Qed.

Lemma expN a : e (- a) = (e a)^-1.
Proof.
by apply: (mulfI (exp_neq0 a)); rewrite -expD subrr exp0 divff ?exp_neq0.
Qed.

Lemma expB a b : e (a - b) = e a / e b.
Proof. by rewrite expD expN. Qed.
End Exponential.

Section Power.
Variables (F : fieldType) (x : F).
Hypothesis H_x : x != 0.

Lemma powerD (a b : int) : x ^ (a + b) = x ^ a * x ^ b.
Proof. exact: expfzDr. Qed.

Definition power : exponential int_ZmodType F :=
  Exponential powerD (expr0z x).
End Power.

Section Softmax.
Variables (R : ringType) (F : fieldType) (e : exponential R F) (c : R).

Section Sum.
Variables (n N d m : nat) (q : 'M[R]_(n, d)) (k : 'M[R]_(N, d)).
Variables (v : 'M[F]_(N, m)) (shown : pred nat) (M P : nat).

Definition visible t s := (s < M + maxn t.+1 P)%N && shown s.

Definition score (t : 'I_n) (s : 'I_N) := c * (row t q *m (row s k)^T) 0 0.

(* Numerator and denominator with the scores A, whatever they are.            *)
Definition weighted (A : 'I_n -> 'I_N -> R) (t : 'I_n) : 'rV[F]_m :=
  \sum_(s < N | visible t s) e (A t s) *: row s v.

Definition mass (A : 'I_n -> 'I_N -> R) (t : 'I_n) : F :=
  \sum_(s < N | visible t s) e (A t s).

Definition softmax_attention : 'M[F]_(n, m) :=
  \matrix_t ((mass score t)^-1 *: weighted score t).

(* The same, with a number a_t subtracted from all scores of t.               *)
Definition shifted (a : 'I_n -> R) t s := score t s - a t.

Definition softmax_attention_less (a : 'I_n -> R) : 'M[F]_(n, m) :=
  \matrix_t ((mass (shifted a) t)^-1 *: weighted (shifted a) t).

Lemma mass_shifted a t : mass (shifted a) t = mass score t / e (a t).
Proof. by rewrite /mass big_distrl; apply: eq_bigr => s _; rewrite expB. Qed.

Lemma weighted_shifted a t :
  weighted (shifted a) t = (e (a t))^-1 *: weighted score t.
Proof.
rewrite /weighted scaler_sumr; apply: eq_bigr => s _.
by rewrite expB scalerA mulrC.
Qed.

(* The denominators are 0 together ...                                        *)
Theorem shifted_defined a t : (mass (shifted a) t == 0) = (mass score t == 0).
Proof.
by rewrite mass_shifted mulf_eq0 invr_eq0 (negPf (exp_neq0 _ _)) orbF.
Qed.

(* ... and subtracting any number for each query changes nothing.             *)
Theorem shift_any a : softmax_attention_less a = softmax_attention.
Proof.
apply/row_matrixP => t; rewrite !rowK mass_shifted weighted_shifted scalerA.
by rewrite invf_div mulrC mulrA mulVf ?mul1r // exp_neq0.
Qed.
End Sum.
End Softmax.

Section Shifted.
Variables (R : realDomainType) (F : fieldType) (e : exponential R F) (c : R).
Variables (n d m M P : nat) (q : 'M[R]_(n, d)) (k : 'M[R]_(M + n, d)).
Variables (v : 'M[F]_(M + n, m)) (shown : pred nat).

(* The largest score that t sees; it always sees itself.                      *)
Definition top (t : 'I_n) :=
  \big[Num.max/score c q k t (rshift M t)]_(s < M + n | visible shown M P t s)
     score c q k t s.

Definition softmax_attention_shifted :=
  softmax_attention_less e c q k v shown M P top.

(* Subtracting the largest visible score changes nothing.                     *)
Theorem softmax_shifted_eq_sum :
  softmax_attention_shifted = softmax_attention e c q k v shown M P.
Proof. exact: shift_any. Qed.

(* It is what its name says.                                                  *)
Lemma top_largest (t : 'I_n) (s : 'I_(M + n)) :
  visible shown M P t s -> score c q k t s <= top t.
Proof.
move=> vis; rewrite /top; have := mem_index_enum s.
elim: (index_enum _) => // a l IH.
rewrite in_cons big_cons => /orP[/eqP <-|/IH].
  by rewrite vis le_maxr lexx.
by case: ifP => // _ le; rewrite le_maxr le orbT.
Qed.

Lemma top_attained (t : 'I_n) : shown (M + t)%N ->
  exists2 s : 'I_(M + n), visible shown M P t s & top t = score c q k t s.
Proof.
move=> own; apply: (big_ind (fun x => exists2 s : 'I_(M + n),
  visible shown M P t s & x = score c q k t s)).
- exists (rshift M t) => //; rewrite /visible /= own andbT ltn_add2l.
  by rewrite leq_max ltnSn.
- by move=> x y X Y; case: leP.
by move=> s vis; exists s.
Qed.
End Shifted.

(* A text of M + n tokens, after M0 of a cache: all keys and values are k, v. *)
Section Cache.
Variables (R : ringType) (F : fieldType) (e : exponential R F) (c : R).
Variables (M0 M n d m P L : nat) (q : 'M[R]_(M + n, d)).
Variables (k : 'M[R]_(L + n, d)) (v : 'M[F]_(L + n, m)) (shown : pred nat).
Hypotheses (H_L : L = (M0 + M)%N) (H_P : (P <= M)%N).

Lemma visible_first (t : 'I_M) (s : 'I_n) :
  visible shown M0 P (lshift n t) (rshift L s) = false.
Proof.
rewrite /visible /= H_L -addnA ltn_add2l ltnNge (leq_trans _ (leq_addr _ _)) //.
by rewrite geq_max ltn_ord.
Qed.

Lemma visible_second (t : 'I_n) s :
  visible shown M0 P (rshift M t) s = visible shown L 0 t s.
Proof.
rewrite /visible /= H_L maxn0 (maxn_idPl _) ?addnS ?addnA //.
by rewrite (leq_trans H_P) // leqW // leq_addr.
Qed.

Lemma mass_first t : mass e shown M0 P (score c q k) (lshift n t) =
  mass e shown M0 P (score c (usubmx q) (usubmx k)) t.
Proof.
rewrite /mass big_split_ord /= [X in _ + X]big_pred0 ?addr0; last first.
  by move=> s; apply: visible_first.
by apply: eq_bigr => s _; rewrite /score !row_usubmx.
Qed.

Lemma weighted_first t : weighted e v shown M0 P (score c q k) (lshift n t) =
  weighted e (usubmx v) shown M0 P (score c (usubmx q) (usubmx k)) t.
Proof.
rewrite /weighted big_split_ord /= [X in _ + X]big_pred0 ?addr0; last first.
  by move=> s; apply: visible_first.
by apply: eq_bigr => s _; rewrite /score !row_usubmx.
Qed.

Lemma mass_second t : mass e shown M0 P (score c q k) (rshift M t) =
  mass e shown L 0 (score c (dsubmx q) k) t.
Proof.
by apply: eq_big => [s|s _]; rewrite ?visible_second // /score row_dsubmx.
Qed.

Lemma weighted_second t : weighted e v shown M0 P (score c q k) (rshift M t) =
  weighted e v shown L 0 (score c (dsubmx q) k) t.
Proof.
by apply: eq_big => [s|s _]; rewrite ?visible_second // /score row_dsubmx.
Qed.

(* Continued from its KV cache, attention gives what one pass gives, at any   *)
(* split after the prefix; numerators and denominators alike (above).         *)
Theorem kv_cache :
  softmax_attention e c q k v shown M0 P =
  col_mx (softmax_attention e c (usubmx q) (usubmx k) (usubmx v) shown M0 P)
         (softmax_attention e c (dsubmx q) k v shown L 0).
Proof.
apply/row_matrixP => t; case: (split_ordP t) => {}t ->.
  by rewrite rowKu !rowK mass_first weighted_first.
by rewrite rowKd !rowK mass_second weighted_second.
Qed.
End Cache.

(* ICLAA: input tokens by their exact scores, the prompt by its biases.       *)
Section Read.
Variables (R : ringType) (F : fieldType) (e : exponential R F) (c : R).
Variables (n d r m P : nat) (q k : 'M[R]_(n, d)) (v : 'M[F]_(n, m)).
Variables (fq : 'M[F]_(n, r)) (b : state F r m).

Definition iclaa_num t :=
  weighted e v predT 0 P (score c q k) t + row t fq *m b.1.

Definition iclaa_den t :=
  mass e predT 0 P (score c q k) t + (row t fq *m b.2) 0 0.

Definition iclaa : 'M[F]_(n, m) :=
  \matrix_t ((iclaa_den t)^-1 *: iclaa_num t).
End Read.

(* Token t depends on the tokens that it sees, and on no other.               *)
Theorem iclaa_causal (R : ringType) (F : fieldType) (e : exponential R F)
    (c : R) n d r m P (q k : 'M[R]_(n, d)) (v : 'M[F]_(n, m))
    (fq : 'M[F]_(n, r)) (q' k' : 'M[R]_(n, d)) (v' : 'M[F]_(n, m))
    (fq' : 'M[F]_(n, r)) (b : state F r m) (t : 'I_n)
    (H_q : row t q = row t q') (H_fq : row t fq = row t fq')
    (H_k : forall s : 'I_n, seen P t s -> row s k = row s k')
    (H_v : forall s : 'I_n, seen P t s -> row s v = row s v') :
  row t (iclaa e c P q k v fq b) = row t (iclaa e c P q' k' v' fq' b).
Proof.
have vis (s : 'I_n) : visible predT 0 P t s -> seen P t s.
  by rewrite /visible andbT.
rewrite !rowK /iclaa_num /iclaa_den H_fq; congr ((_ + _)^-1 *: (_ + _)).
  by apply: eq_bigr => s /vis S; rewrite /score H_q H_k.
by apply: eq_bigr => s /vis S; rewrite /score H_q H_k // H_v.
Qed.

Section Iclaa.
Variables (R : ringType) (F : fieldType) (e : exponential R F) (c : R).
Variables (M n d r m P : nat) (k' : 'M[R]_(M, d)) (v' : 'M[F]_(M, m)).
Variables (q k : 'M[R]_(n, d)) (v : 'M[F]_(n, m)).
Variables (fq : 'M[F]_(n, r)) (fk' : 'M[F]_(M, r)).

Definition prompt_biases : state F r m := state_after fk' fk' v' 0 0.

(* Attention to prompt and input, as the second part of kv_cache.             *)
Definition prompted_num t :=
  weighted e (col_mx v' v) predT M P (score c q (col_mx k' k)) t.

Definition prompted_den t := mass e predT M P (score c q (col_mx k' k)) t.

Definition prompted :=
  softmax_attention e c q (col_mx k' k) (col_mx v' v) predT M P.

Definition approximated := iclaa e c P q k v fq prompt_biases.

Definition kernel_error t j :=
  (row t fq *m (row j fk')^T) 0 0 - e (score c q k' t j).

Local Notation num' := (iclaa_num e c P q k v fq prompt_biases).
Local Notation den' := (iclaa_den e c P q k fq prompt_biases).

Lemma visible_prompt (t : 'I_n) (j : 'I_M) : visible predT M P t j.
Proof. by rewrite /visible /= andbT ltn_addr. Qed.

Lemma visible_input (t s : 'I_n) :
  visible predT M P t (M + s) = visible predT 0 P t s.
Proof. by rewrite /visible /= ltn_add2l. Qed.

Lemma iclaa_numE t :
  num' t = prompted_num t + \sum_j kernel_error t j *: row j v'.
Proof.
rewrite /iclaa_num /prompted_num /weighted big_split_ord /= addrAC.
rewrite [RHS]addrC; congr (_ + _).
  by apply: eq_big => s; rewrite ?visible_input // /score !rowKd.
under [X in _ = X + _]eq_bigl do rewrite visible_prompt.
rewrite -big_split add0r mulmx_sumr; apply: eq_bigr => j _ /=.
rewrite /score !rowKu -scalerDl addrC subrK mulmxA.
by rewrite -mul_scalar_mx -mx11_scalar.
Qed.

Lemma iclaa_denE t : den' t = prompted_den t + \sum_j kernel_error t j.
Proof.
rewrite /iclaa_den /prompted_den /mass big_split_ord /= addrAC.
rewrite [RHS]addrC; congr (_ + _).
  by apply: eq_big => s; rewrite ?visible_input // /score !rowKd.
under [X in _ = X + _]eq_bigl do rewrite visible_prompt.
rewrite -big_split add0r mulmx_sumr summxE; apply: eq_bigr => j _ /=.
by rewrite /score !rowKu addrC subrK.
Qed.

(* If the features give the kernel at the prompt's keys, nothing is lost, and *)
(* the denominators are the same.                                             *)
Theorem iclaa_exact (H_kernel : forall t j, kernel_error t j = 0) :
  approximated = prompted /\ forall t, den' t = prompted_den t.
Proof.
have D t : den' t = prompted_den t by rewrite iclaa_denE big1 ?addr0.
split=> //; apply/row_matrixP => t; rewrite !rowK D iclaa_numE big1 ?addr0 //.
by move=> j _; rewrite H_kernel scale0r.
Qed.

(* If not, the output is off by exactly this.                                 *)
Theorem iclaa_error t (H_den : prompted_den t != 0) (H_den' : den' t != 0) :
  row t approximated - row t prompted =
  (den' t)^-1 *: \sum_j kernel_error t j *: (row j v' - row t prompted).
Proof.
have N : prompted_num t = prompted_den t *: row t prompted.
  by rewrite rowK scalerA divff ?scale1r.
under eq_bigr do rewrite scalerBr; rewrite sumrB -scaler_suml.
have -> : row t approximated - row t prompted =
    (den' t)^-1 *: (num' t - den' t *: row t prompted).
  by rewrite [X in X - _]rowK scalerBr scalerA mulVf ?scale1r.
by rewrite iclaa_numE iclaa_denE scalerDl -N opprD addrACA subrr add0r.
Qed.
End Iclaa.

(* Nystrom features: kernel values at r landmarks, with their Gram matrix as  *)
(* metric.  Any kernel, not only a symmetric one.                             *)
Section Landmarks.
Variables (F : fieldType) (X : Type) (kernel : X -> X -> F).
Variables (r : nat) (landmark : 'I_r -> X).

Definition gram : 'M[F]_r := \matrix_(i, j) kernel (landmark i) (landmark j).

Definition landmark_q x : 'rV[F]_r := \row_i kernel x (landmark i).

Definition landmark_k x : 'rV[F]_r :=
  (invmx gram *m \col_i kernel (landmark i) x)^T.

(* They give the kernel of every query with a key that is a landmark.         *)
Theorem landmarks_exact (H_gram : gram \in unitmx) x j :
  (landmark_q x *m (landmark_k (landmark j))^T) 0 0 = kernel x (landmark j).
Proof.
have -> : landmark_k (landmark j) = (delta_mx j 0)^T.
  rewrite /landmark_k -[in RHS](mulKmx H_gram (delta_mx j 0)) -colE.
  by congr (_ *m _)^T; apply/colP => i; rewrite !mxE.
by rewrite trmxK -colE !mxE.
Qed.
End Landmarks.

(* The prompt's own keys as landmarks: r = M, and nothing is lost.            *)
Section AllLandmarks.
Variables (R : ringType) (F : fieldType) (e : exponential R F) (c : R).
Variables (M n d m P : nat) (k' : 'M[R]_(M, d)) (v' : 'M[F]_(M, m)).
Variables (q k : 'M[R]_(n, d)) (v : 'M[F]_(n, m)).

Definition kernel (x y : 'rV[R]_d) := e (c * (x *m y^T) 0 0).
Definition prompt_key (j : 'I_M) := row j k'.

(* With M linearly independent landmarks ICLAA is exact.  (Keys that repeat   *)
(* make the Gram matrix singular: H_gram fails.)                              *)
Corollary iclaa_landmarks (H_gram : gram kernel prompt_key \in unitmx) :
  approximated e c P v' q k v
    (\matrix_t landmark_q kernel prompt_key (row t q))
    (\matrix_j landmark_k kernel prompt_key (row j k')) =
  prompted e c P k' v' q k v.
Proof.
set fq := \matrix_t _; set fk := \matrix_j _.
have H t j : kernel_error e c k' q fq fk t j = 0.
  by rewrite /kernel_error !rowK landmarks_exact ?subrr.
by have [] := iclaa_exact P v' k v H.
Qed.
End AllLandmarks.

Section Defined.
Variables (R : ringType) (F : numFieldType) (e : exponential R F) (c : R).
Variables (n d M P : nat) (q : 'M[R]_(n, d)) (k : 'M[R]_(M + n, d)).
Variable shown : pred nat.

(* Where exp is positive, a token that counts has no zero denominator: it     *)
(* sees itself.                                                               *)
Theorem softmax_defined (H_e : forall a, 0 < e a) (t : 'I_n)
    (H_t : shown (M + t)%N) :
  mass e shown M P (score c q k) t != 0.
Proof.
rewrite gt_eqF // /mass (bigD1 (rshift M t)) /=; last first.
  by rewrite /visible /= H_t andbT ltn_add2l leq_max ltnSn.
by rewrite ltr_paddr // sumr_ge0 // => s _; apply: ltW.
Qed.
End Defined.

(* The hypotheses can be met: 2^a for whole a, and two keys.                  *)
Section Instances.
Let F := [numFieldType of rat].

Lemma two_neq0 : 2%:R != 0 :> F. Proof. by []. Qed.

(* 2^a is positive.                                                           *)
Lemma power_gt0 (a : int) : 0 < power two_neq0 a.
Proof. exact: exprz_gt0. Qed.

(* The two keys 0 and 1, of width 1, with weights 2^(q k): their Gram matrix  *)
(* is [1 1; 1 2].                                                             *)
Let keys : 'M[int]_(2, 1) := \matrix_(i, j) (i : nat)%:Z.

Lemma gram_instance :
  gram (kernel (power two_neq0) 1 (d := 1)) (prompt_key keys) \in unitmx.
Proof.
rewrite unitmxE (expand_det_row _ 0) !big_ord_recl big_ord0.
by rewrite /cofactor !det_mx11 !mxE /kernel /prompt_key !mxE !big_ord1 !mxE.
Qed.
End Instances.
