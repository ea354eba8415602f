(* Computable twins: MathComp's matrices do not compute, lists of lists do.   *)
(* Linearized attention by its definition, states, RoPE, the polynomial map   *)
(* and the conversion of prompts have here twins on lists, the same text over *)
(* operations on lists, proved equal to them for all shapes and numbers.      *)
(* instances.v lets the twins compute, over the rationals, what Python has    *)
(* computed.                                                                  *)
(*                                                                            *)
(*   F                any field                                               *)
(*   array n m        a list of n lists of m numbers (entries not there       *)
(*                    count as 0), with operations that compute               *)
(*   to_mx A          the array as a matrix                                   *)
(*   c_name           the twin of the definition called name                  *)
(*   name_c           the theorem that they are equal                         *)
(*   n r m, fq .. P   as in linear_attention.v; c s h e l as in rope.v        *)
(*   ws, bs           a list of layers, and for each layer and group a state  *)
(*   per              heads of the queries in a group                         *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import feature_maps linear_attention rope conversion.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section Arrays.
Variable F : fieldType.

Record array (n m : nat) := Array { lists : seq (seq F) }.

Definition entry n m (A : array n m) i j := nth 0 (nth [::] (lists A) i) j.
Coercion entry : array >-> Funclass.

Definition tabulate n m (f : nat -> nat -> F) : array n m :=
  Array n m (mkseq (fun i => mkseq (f i) m) n).

Definition to_mx n m (A : array n m) : 'M[F]_(n, m) := \matrix_(i, j) A i j.

Definition of_mx n m (A : 'M[F]_(n, m)) : array n m :=
  Array n m [seq [seq A i j | j <- enum 'I_m] | i <- enum 'I_n].

(* Every matrix is that of an array: what follows speaks of all matrices.     *)
Theorem of_mxK n m (A : 'M[F]_(n, m)) : to_mx (of_mx A) = A.
Proof.
apply/matrixP => i j; rewrite mxE /entry.
rewrite (nth_map i) ?size_enum_ord // (nth_map j) ?size_enum_ord //.
by rewrite !nth_ord_enum.
Qed.

Lemma tabulateE n m f i j :
  (i < n)%N -> (j < m)%N -> tabulate n m f i j = f i j.
Proof. by move=> lin ljm; rewrite /entry /= !nth_mkseq. Qed.

Lemma to_mx_tabulate n m f : to_mx (tabulate n m f) = \matrix_(i, j) f i j.
Proof. by apply/matrixP => i j; rewrite !mxE tabulateE. Qed.

(* Equal lists, equal matrices.                                               *)
Lemma eq_to_mx n m (A B : array n m) : lists A == lists B -> to_mx A = to_mx B.
Proof. by case: A B => a [b] /= /eqP ->. Qed.

(* The operations, and what they are on matrices.                             *)
Definition c_sum n (f : nat -> F) := foldr (fun i a => f i + a) 0 (iota 0 n).

Definition c_0 n m : array n m := tabulate n m (fun _ _ => 0).
Definition c_add n m (A B : array n m) :=
  tabulate n m (fun i j => A i j + B i j).
Definition c_scale n m a (A : array n m) := tabulate n m (fun i j => a * A i j).
Definition c_mul n k m (A : array n k) (B : array k m) :=
  tabulate n m (fun i j => c_sum k (fun l => A i l * B l j)).
Definition c_tr n m (A : array n m) := tabulate m n (fun i j => A j i).
Definition c_map n m f (A : array n m) := tabulate n m (fun i j => f (A i j)).
Definition c_row n m t (A : array n m) := tabulate 1 m (fun _ j => A t j).
Definition c_rows n m (f : nat -> array 1 m) : array n m :=
  Array n m (mkseq (fun t => nth [::] (lists (f t)) 0) n).
Definition c_sums n m (l : seq nat) (f : nat -> array n m) :=
  foldr (fun s A => c_add (f s) A) (c_0 n m) l.
Definition c_row_mx n m k (A : array n m) (B : array n k) :=
  tabulate n (m + k) (fun i j => if (j < m)%N then A i j else B i (j - m)%N).


(* n rows of m numbers as one row, as reshape has it; and of n * m columns    *)
(* the i-th m, as reshape has them too.                                       *)
Definition c_mxvec n m (A : array n m) :=
  tabulate 1 (n * m) (fun _ k => A (k %/ m)%N (k %% m)%N).

Definition columns k n m (A : 'M[F]_(k, n * m)) (i : 'I_n) : 'M[F]_(k, m) :=
  \matrix_(a, j) A a (mxvec_index i j).
Definition c_columns k n m (A : array k (n * m)) i : array k m :=
  tabulate k m (fun a j => A a (i * m + j)%N).

Lemma c_sumE n f : c_sum n f = \sum_(i < n) f i.
Proof. by rewrite -(big_mkord xpredT f) unlock /index_iota subn0. Qed.

Lemma to_mx0 n m : to_mx (c_0 n m) = 0.
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mxD n m (A B : array n m) : to_mx (c_add A B) = to_mx A + to_mx B.
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mxZ n m a (A : array n m) : to_mx (c_scale a A) = a *: to_mx A.
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mxM n k m (A : array n k) (B : array k m) :
  to_mx (c_mul A B) = to_mx A *m to_mx B.
Proof.
rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE c_sumE.
by apply: eq_bigr => l _; rewrite !mxE.
Qed.

Lemma to_mx_tr n m (A : array n m) : to_mx (c_tr A) = (to_mx A)^T.
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mx_map n m f (A : array n m) : to_mx (c_map f A) = map_mx f (to_mx A).
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mx_row n m (t : 'I_n) (A : array n m) :
  to_mx (c_row t A) = row t (to_mx A).
Proof. by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE. Qed.

Lemma to_mx_rows n m (f : nat -> array 1 m) :
  to_mx (c_rows n f) = \matrix_(t < n) to_mx (f t).
Proof. by apply/matrixP => i j; rewrite !mxE /entry /= nth_mkseq. Qed.

Lemma to_mx_sums n m l (f : nat -> array n m) :
  to_mx (c_sums l f) = \sum_(s <- l) to_mx (f s).
Proof.
by elim: l => [|s l IH] /=; rewrite ?big_nil ?to_mx0 // big_cons to_mxD IH.
Qed.

Lemma to_mx_row_mx n m k (A : array n m) (B : array n k) :
  to_mx (c_row_mx A B) = row_mx (to_mx A) (to_mx B).
Proof.
rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !mxE.
by case: splitP => l ->; rewrite mxE ?addKn.
Qed.

(* MathComp's mxvec, too, goes row by row.                                    *)
Lemma index_pair (A B : eqType) (s : seq A) (t : seq B) x y :
  x \in s -> y \in t ->
  index (x, y) [seq (a, b) | a <- s, b <- t] =
  (index x s * size t + index y t)%N.
Proof.
move=> xs yt; elim: s xs => //= a s IH; rewrite inE index_cat eq_sym.
have [-> _ | ax /= /IH ->] := eqVneq a x.
  by rewrite map_f // index_map // => b b' [].
rewrite mulSn size_map -addnA; case: mapP => // -[b _ [ba _]].
by rewrite ba eqxx in ax.
Qed.

Lemma mxvec_indexE n m (i : 'I_n) (j : 'I_m) :
  mxvec_index i j = (i * m + j)%N :> nat.
Proof.
rewrite /mxvec_index /= /enum_rank /enum_rank_in insubdK; last first.
  by rewrite -topredE /= cardE index_mem mem_enum.
by rewrite enumT unlock index_pair ?index_enum_ord ?size_enum_ord ?mem_enum.
Qed.

Lemma to_mx_columns k n m (A : array k (n * m)) (i : 'I_n) :
  to_mx (c_columns A i) = columns (to_mx A) i.
Proof.
by rewrite to_mx_tabulate; apply/matrixP => a j; rewrite !mxE mxvec_indexE.
Qed.

Lemma to_mx_mxvec n m (A : array n m) : to_mx (c_mxvec A) = mxvec (to_mx A).
Proof.
rewrite to_mx_tabulate; apply/rowP => k; case/mxvec_indexP: k => i j.
rewrite mxvecE !mxE mxvec_indexE.
have m0 : (0 < m)%N by apply: leq_trans (ltn_ord j).
by rewrite divnMDl // divn_small // addn0 modnMDl modn_small.
Qed.
End Arrays.

Arguments Array {F}.
Arguments tabulate {F}.
Arguments c_0 {F}.
Arguments c_rows {F} n {m}.

Declare Scope array_scope.
Delimit Scope array_scope with A.
Bind Scope array_scope with array.
Infix "+" := c_add : array_scope.
Infix "*m" := c_mul : array_scope.
Infix "*:" := c_scale : array_scope.
Notation "A ^T" := (c_tr A) : array_scope.

Definition to_mxE := (to_mx0, to_mxD, to_mxZ, to_mxM, to_mx_tr, to_mx_map,
  to_mx_row, to_mx_rows, to_mx_row_mx, to_mx_columns, to_mx_mxvec).

(* ------------------------------------------------------------------------- *)
(* linear_attention.v: the definition.                                        *)
Section Attention.
Variables (F : fieldType) (n r m : nat).

Definition c_state := (array F r m * array F r 1)%type.
Definition to_state (b : c_state) : state F r m := (to_mx b.1, to_mx b.2).

Section Sum.
Variables (fq fk gq gk : array F n r) (v : array F n m).
Variables (S : array F r m) (z : array F r 1) (P : nat).

Definition c_seen t := [seq s <- iota 0 n | seen P t s].

Definition c_S_at t : array F r m :=
  S + c_sums (c_seen t) (fun s => (c_row s fk)^T *m c_row s v)%A.

Definition c_z_at t : array F r 1 :=
  z + c_sums (c_seen t) (fun s => (c_row s gk)^T)%A.

Definition c_num t : array F 1 m := c_row t fq *m c_S_at t.

Definition c_den t : F := (c_row t gq *m c_z_at t)%A 0%N 0%N.

Definition c_linear_attention (normalise : bool) : array F n m :=
  c_rows n (fun t =>
    if normalise then (c_den t)^-1 *: c_num t else c_num t)%A.

Definition c_defined (normalise : bool) :=
  normalise ==> all (fun t => c_den t != 0) (iota 0 n).

Definition c_state_after : c_state :=
  ((S + c_sums (iota 0 n) (fun s => (c_row s fk)^T *m c_row s v))%A,
   (z + c_sums (iota 0 n) (fun s => (c_row s gk)^T))%A).

Lemma to_mx_seen k l (f : nat -> array F k l) t :
  to_mx (c_sums (c_seen t) f) = \sum_(s < n | seen P t s) to_mx (f s).
Proof.
rewrite to_mx_sums big_filter -[n in iota 0 n]subn0.
exact: big_mkord (fun s => seen P t s) (fun s => to_mx (f s)).
Qed.

Lemma to_mx_all k l (f : nat -> array F k l) :
  to_mx (c_sums (iota 0 n) f) = \sum_(s < n) to_mx (f s).
Proof.
rewrite to_mx_sums -[n in iota 0 n]subn0.
exact: big_mkord xpredT (fun s => to_mx (f s)).
Qed.

Lemma S_at_c t : to_mx (c_S_at t) = S_at (to_mx fk) (to_mx v) (to_mx S) P t.
Proof.
rewrite to_mxD to_mx_seen; congr (_ + _).
by apply: eq_bigr => s _; rewrite !to_mxE.
Qed.

Lemma z_at_c t : to_mx (c_z_at t) = z_at (to_mx gk) (to_mx z) P t.
Proof.
rewrite to_mxD to_mx_seen; congr (_ + _).
by apply: eq_bigr => s _; rewrite !to_mxE.
Qed.

Lemma num_c (t : 'I_n) :
  to_mx (c_num t) = num (to_mx fq) (to_mx fk) (to_mx v) (to_mx S) P t.
Proof. by rewrite to_mxM to_mx_row S_at_c. Qed.

Lemma den_c (t : 'I_n) :
  c_den t = den (to_mx gq) (to_mx gk) (to_mx z) P t.
Proof. by rewrite /den -z_at_c -to_mx_row -to_mxM mxE. Qed.

(* The definition computes; as everywhere here, x / 0 is 0 on both sides, ... *)
Theorem linear_attention_c normalise :
  to_mx (c_linear_attention normalise) =
  linear_attention (to_mx fq) (to_mx fk) (to_mx gq) (to_mx gk) (to_mx v)
    (to_mx S) (to_mx z) P normalise.
Proof.
rewrite to_mx_rows; apply/row_matrixP => t; rewrite !rowK.
by case: normalise; rewrite ?to_mxZ num_c ?den_c.
Qed.

(* ... and where the program refuses to divide is computed too.               *)
Theorem defined_c normalise :
  c_defined normalise = defined (to_mx gq) (to_mx gk) (to_mx z) P normalise.
Proof.
congr (_ ==> _); apply/allP/forallP => [nz t | nz t].
  by rewrite -den_c nz // mem_iota /=.
by rewrite mem_iota /= => tn; rewrite (den_c (Ordinal tn)).
Qed.

(* The state after the text.                                                  *)
Theorem state_after_c :
  to_state c_state_after =
  state_after (to_mx fk) (to_mx gk) (to_mx v) (to_mx S) (to_mx z).
Proof.
rewrite /to_state /= !to_mxD !to_mx_all; congr (_ + _, _ + _);
  by apply: eq_bigr => s _; rewrite !to_mxE.
Qed.
End Sum.
End Attention.

(* ------------------------------------------------------------------------- *)
(* linear_attention.v: rotations.  The twin of one turns a token; there are   *)
(* no_rotation_c and rope_c.                                                  *)
Section Turn.
Variables (F : fieldType) (r : nat).

Definition turns (R : rotation F r)
    (turn : int -> array F 1 r -> array F 1 r) :=
  forall p x, to_mx (turn p x) = to_mx x *m (R p)^T.

Section Turned.
Variables (R : rotation F r) (turn : int -> array F 1 r -> array F 1 r).
Hypothesis H_R : turns R turn.

Definition c_turned n p (f : array F n r) : array F n r :=
  c_rows n (fun t => turn (p + t%:Z) (c_row t f)).

(* Tokens from position p on.                                                 *)
Theorem turned_c n p (f : array F n r) :
  to_mx (c_turned p f) = turned R p (to_mx f).
Proof.
rewrite to_mx_rows; apply/row_matrixP => t.
by rewrite !rowK H_R to_mx_row.
Qed.

(* R_k acts on the feature axis: on the columns of a state.                   *)
Definition c_turn_columns k n (S : array F r n) : array F r n :=
  (c_rows n (fun j => turn k (c_row j S^T)%A))^T.

Lemma turn_columns_c k n (S : array F r n) :
  to_mx (c_turn_columns k S) = R k *m to_mx S.
Proof.
rewrite to_mx_tr to_mx_rows; apply: trmx_inj; rewrite trmxK.
apply/row_matrixP => j.
by rewrite rowK H_R to_mx_row to_mx_tr trmx_mul row_mul.
Qed.
End Turned.

Definition c_no_rotation (p : int) (x : array F 1 r) := x.

(* Where there are no positions, nothing turns.                               *)
Theorem no_rotation_c : turns (no_rotation F r) c_no_rotation.
Proof. by move=> p x; rewrite trmx1 mulmx1. Qed.
End Turn.
Arguments c_no_rotation {F r}.

(* ------------------------------------------------------------------------- *)
(* linear_attention.v: the algebra of states.                                 *)
Section State.
Variables (F : fieldType) (r m : nat) (Rf Rg : rotation F r).
Variables turn_f turn_g : int -> array F 1 r -> array F 1 r.
Hypotheses (H_f : turns Rf turn_f) (H_g : turns Rg turn_g).

Definition c_shift (k : int) (b : c_state F r m) : c_state F r m :=
  (c_turn_columns turn_f k b.1, c_turn_columns turn_g k b.2).

(* The same state, seen from k positions further on.                          *)
Theorem shift_c k b : to_state (c_shift k b) = shift Rf Rg k (to_state b).
Proof. by rewrite /to_state /= (turn_columns_c H_f) (turn_columns_c H_g). Qed.

Definition c_past := (c_state F r m * int)%type.
Definition to_past (a : c_past) : past F r m := (to_state a.1, a.2).
Implicit Types (a b whole : c_past).

Definition c_no_text (position : int) : c_past :=
  ((c_0 r m, c_0 r 1), position).

Definition c_absorb_text a n (k : array F n r) (v : array F n m) : c_past :=
  (c_state_after (c_turned turn_f a.2 k) (c_turned turn_g a.2 k) v a.1.1 a.1.2,
   a.2 + n%:Z).

Definition c_shift_past a k : c_past := (c_shift k a.1, a.2 + k).

Definition c_join a b (origin : int) : c_past :=
  let b' := c_shift_past b (a.2 - origin) in
  (((a.1.1 + b'.1.1)%A, (a.1.2 + b'.1.2)%A), b'.2).

Definition c_remove whole b (origin : int) : c_past :=
  let start := whole.2 - (b.2 - origin) in
  let b' := c_shift_past b (start - origin) in
  (((whole.1.1 + -1 *: b'.1.1)%A, (whole.1.2 + -1 *: b'.1.2)%A), start).

Definition c_scale_past a (strength : F) : c_past :=
  (((strength *: a.1.1)%A, (strength *: a.1.2)%A), a.2).

Definition c_attend a n (q k : array F n r) (v : array F n m) P normalise :=
  c_linear_attention (c_turned turn_f a.2 q) (c_turned turn_f a.2 k)
    (c_turned turn_g a.2 q) (c_turned turn_g a.2 k) v a.1.1 a.1.2 P normalise.

Definition c_accepts a n (q k : array F n r) P normalise :=
  c_defined (c_turned turn_g a.2 q) (c_turned turn_g a.2 k) a.1.2 P normalise.

(* The state of no text, ...                                                  *)
Theorem no_text_c p : to_past (c_no_text p) = no_text F r m p.
Proof. by rewrite /to_past /to_state /= !to_mx0. Qed.

(* ... of more text, ...                                                      *)
Theorem absorb_text_c a n (k : array F n r) (v : array F n m) :
  to_past (c_absorb_text a k v) =
  absorb_text Rf Rg (to_past a) (to_mx k) (to_mx v).
Proof.
by rewrite /to_past /= state_after_c (turned_c H_f) (turned_c H_g).
Qed.

(* ... with its position moved along, ...                                     *)
Theorem shift_past_c a k :
  to_past (c_shift_past a k) = shift_past Rf Rg (to_past a) k.
Proof. by rewrite /to_past /= shift_c. Qed.

(* ... of one text after another, ...                                         *)
Theorem join_c a b o :
  to_past (c_join a b o) = join Rf Rg (to_past a) (to_past b) o.
Proof. by rewrite /join -shift_past_c /to_past /to_state /= !to_mxD. Qed.

(* ... with the last text taken out, ...                                      *)
Theorem remove_c whole b o :
  to_past (c_remove whole b o) = remove Rf Rg (to_past whole) (to_past b) o.
Proof.
rewrite /remove -shift_past_c /to_past /to_state /=.
by rewrite !to_mxD !to_mxZ !scaleN1r.
Qed.

(* ... and of a text that counts so many times.                               *)
Theorem scale_c a strength :
  to_past (c_scale_past a strength) = scale (to_past a) strength.
Proof. by rewrite /to_past /to_state /= !to_mxZ. Qed.

(* Attention from a past, with RoPE, ...                                      *)
Theorem attend_c a n (q k : array F n r) (v : array F n m) P normalise :
  to_mx (c_attend a q k v P normalise) =
  attend Rf Rg (to_past a) (to_mx q) (to_mx k) (to_mx v) P normalise.
Proof. by rewrite linear_attention_c !(turned_c H_f) !(turned_c H_g). Qed.

(* ... and where it is refused.                                               *)
Theorem accepts_c a n (q k : array F n r) P normalise :
  c_accepts a q k P normalise =
  accepts Rg (to_past a) (to_mx q) (to_mx k) P normalise.
Proof. by rewrite /c_accepts defined_c !(turned_c H_g). Qed.
End State.

(* ------------------------------------------------------------------------- *)
(* rope.v                                                                     *)
Section Rope.
Variables (F : fieldType) (h e : nat) (l : layout).

Definition c_rotate (x : array F 1 (h + h + e)) (cos sin : array F 1 h) :=
  let a i := x 0%N (if l is Half then i else i.*2) in
  let b i := x 0%N (if l is Half then h + i else i.*2.+1)%N in
  let a' i := a i * cos 0%N i - b i * sin 0%N i in
  let b' i := a i * sin 0%N i + b i * cos 0%N i in
  tabulate 1 (h + h + e) (fun _ j =>
    if (j < h + h)%N then
      if l is Half then if (j < h)%N then a' j else b' (j - h)%N
      else if odd j then b' j./2 else a' j./2
    else x 0%N j).

(* Pairs of features turn, in either layout; the others pass through.         *)
Theorem rotate_c x cos sin :
  to_mx (c_rotate x cos sin) = rotate (to_mx x) (to_mx cos) (to_mx sin) l.
Proof.
rewrite to_mx_tabulate; apply/rowP => j; rewrite !mxE.
case: splitP => k ->; last by rewrite !mxE.
case: l; last by rewrite mxE row_mxKl row_mxKr; case: ifP; rewrite !mxE.
by rewrite mxE; case: splitP => i E; rewrite ?E ?addKn !mxE.
Qed.

(* Powers of points of the circle, one for each pair.                         *)
Section PowerTable.
Variables c s : array F 1 h.

Definition c_power_cos p :=
  tabulate 1 h (fun _ i => (power (c 0%N i) (s 0%N i) p).1).

Definition c_power_sin p :=
  tabulate 1 h (fun _ i => (power (c 0%N i) (s 0%N i) p).2).

Definition c_rope p x := c_rotate x (c_power_cos p) (c_power_sin p).

Definition c_circle :=
  all (fun i => c 0%N i * c 0%N i + s 0%N i * s 0%N i == 1) (iota 0 h).

Lemma circle_c :
  c_circle -> to_mx c ** to_mx c + to_mx s ** to_mx s = const_mx 1.
Proof.
move=> /allP on; apply/rowP => i; rewrite !mxE.
by apply/eqP/on; rewrite mem_iota /=.
Qed.

Lemma power_cos_c p :
  to_mx (c_power_cos p) = power_cos (to_mx c) (to_mx s) p.
Proof. by rewrite to_mx_tabulate; apply/rowP => i; rewrite !mxE. Qed.

Lemma power_sin_c p :
  to_mx (c_power_sin p) = power_sin (to_mx c) (to_mx s) p.
Proof. by rewrite to_mx_tabulate; apply/rowP => i; rewrite !mxE. Qed.

(* RoPE by powers of points of the circle, which is seen by computation.      *)
Theorem rope_c (H_circle : c_circle) :
  turns (rope e (power_table (circle_c H_circle)) l) c_rope.
Proof.
by move=> p x; rewrite rotate_c power_cos_c power_sin_c rotateE.
Qed.
End PowerTable.
End Rope.

(* ------------------------------------------------------------------------- *)
(* The layers of conversion.v's library_layer, as Config.layer of             *)
(* refimpl/model/attention_layers.py has them with norm "none" and activation *)
(* "quadratic": per heads for each group, weights over any kind of arrays M.  *)
Record weights (M : nat -> nat -> Type) (d groups per dk m hidden : nat) :=
  Weights {
    W_Q : M d (groups * per * dk)%N;
    b_Q : M 1%N (groups * per * dk)%N;
    W_K : M d (groups * dk)%N;
    b_K : M 1%N (groups * dk)%N;
    W_V : M d (groups * m)%N;
    b_V : M 1%N (groups * m)%N;
    W_O : M (groups * per * m)%N d;
    b_O : M 1%N d;
    W_up : M d hidden;
    b_up : M 1%N hidden;
    W_down : M hidden d;
    b_down : M 1%N d }.

Section Library.
Variables (F : fieldType) (d groups per dk r m hidden : nat).
Variables (phi : 'rV[F]_dk -> 'rV[F]_r) (R_num R_den : rotation F r).
Variables (normalise parallel : bool).

Lemma group_of_lt (i : 'I_(groups * per)) : (i %/ per < groups)%N.
Proof.
have lt := ltn_ord i; rewrite ltn_divLR //.
by move: (leq_ltn_trans (leq0n i) lt); rewrite muln_gt0 => /andP[].
Qed.

(* silu to second order.  In characteristic 2 MathComp's x / 0 is 0; the      *)
(* program refuses there.                                                     *)
Definition activation (x : F) := x * (2%:R + x) / 4%:R.

Variable w : weights (matrix F) d groups per dk m hidden.

Definition mlp (x : 'rV[F]_d) : 'rV[F]_d :=
  map_mx activation (x *m W_up w + b_up w) *m W_down w + b_down w.

(* pre (and post, which is the same without norms): x + o, then + mlp;        *)
(* parallel: x + o + mlp x.                                                   *)
Definition rest (x o : 'rV[F]_d) : 'rV[F]_d :=
  let y := x + (o + b_O w) in if parallel then y + mlp x else y + mlp y.

Definition config_layer : layer F d d :=
  library_layer (fun i : 'I_(groups * per) => Ordinal (group_of_lt i)) id
    (columns (W_Q w)) (columns (b_Q w)) (columns (W_K w)) (columns (b_K w))
    (columns (W_V w)) (columns (b_V w)) phi phi R_num R_den normalise
    (W_O w) rest.
End Library.

(* Layers of one configuration, one after the other.                          *)
Fixpoint config_model (F : fieldType) (d groups per dk r m hidden : nat)
    (phi : 'rV[F]_dk -> 'rV[F]_r) (R_num R_den : rotation F r)
    (normalise parallel : bool)
    (ws : seq (weights (matrix F) d groups per dk m hidden)) :
    transformer F d d :=
  if ws is w :: ws then
    Block (config_layer phi R_num R_den normalise parallel w)
      (config_model phi R_num R_den normalise parallel ws)
  else Stop F d.

(* ------------------------------------------------------------------------- *)
(* feature_maps.v                                                             *)
Section Polynomial.
Variables (F : fieldType) (d : nat).

Fixpoint c_polynomial p (x : array F 1 d) : array F 1 (width d p) :=
  if p is p.+1 then
    c_mxvec ((c_polynomial p x)^T *m c_row_mx (tabulate 1 1 (fun _ _ => 1)) x)
  else tabulate 1 1 (fun _ _ => 1).

(* The polynomial feature map computes.                                       *)
Theorem polynomial_c p x : to_mx (c_polynomial p x) = polynomial p (to_mx x).
Proof.
have one : to_mx (tabulate 1 1 (fun _ _ => 1)) = 1%:M :> 'M[F]_1.
  by rewrite to_mx_tabulate; apply/matrixP => i j; rewrite !ord1 !mxE.
elim: p => [|p IH] //=.
by rewrite to_mx_mxvec to_mxM to_mx_tr IH to_mx_row_mx one.
Qed.
End Polynomial.

(* ------------------------------------------------------------------------- *)
(* conversion.v, for the layers of the library.                               *)
Section Conversion.
Variables (F : fieldType) (d groups per dk r m hidden : nat).

(* phi and the rotations are given with their twins: identity, polynomial_c;  *)
(* no_rotation_c, rope_c.                                                     *)
Variables (phi : 'rV[F]_dk -> 'rV[F]_r) (c_phi : array F 1 dk -> array F 1 r).
Hypothesis H_phi : forall x, to_mx (c_phi x) = phi (to_mx x).

Variables (R_num R_den : rotation F r).
Variables (turn_num turn_den : int -> array F 1 r -> array F 1 r).
Hypotheses (H_num : turns R_num turn_num) (H_den : turns R_den turn_den).

Variables (normalise parallel : bool).

Definition c_weights := weights (array F) d groups per dk m hidden.

Definition to_weights (w : c_weights) :=
  Weights (to_mx (W_Q w)) (to_mx (b_Q w)) (to_mx (W_K w)) (to_mx (b_K w))
    (to_mx (W_V w)) (to_mx (b_V w)) (to_mx (W_O w)) (to_mx (b_O w))
    (to_mx (W_up w)) (to_mx (b_up w)) (to_mx (W_down w)) (to_mx (b_down w)).

Notation layer_of w :=
  (config_layer phi R_num R_den normalise parallel (to_weights w)).

(* Biases of a layer: one state for each group.                               *)
Definition c_biases := seq (c_state F r m).
Definition bias (b : c_biases) g := nth (c_0 r m, c_0 r 1) b g.
Definition to_bias w (b : c_biases) : layer_biases (layer_of w) :=
  [ffun g : 'I_groups => to_state (bias b g)].

Definition c_each n k l (f : array F 1 k -> array F 1 l) (X : array F n k) :=
  c_rows n (fun t => f (c_row t X)).

Lemma each_c n k l (f : array F 1 k -> array F 1 l) f' (X : array F n k) :
  (forall x, to_mx (f x) = f' (to_mx x)) ->
  to_mx (c_each f X) = each f' (to_mx X).
Proof.
move=> ff'; rewrite to_mx_rows; apply/row_matrixP => t.
by rewrite !rowK ff' to_mx_row.
Qed.

Section Layer.
Variables (w : c_weights) (b : c_biases) (p : int) (P n : nat).
Variable X : array F n d.

Definition c_q i x := c_phi (x *m c_columns (W_Q w) i + c_columns (b_Q w) i)%A.
Definition c_k g x := c_phi (x *m c_columns (W_K w) g + c_columns (b_K w) g)%A.
Definition c_v g x := (x *m c_columns (W_V w) g + c_columns (b_V w) g)%A.

Definition c_mlp (x : array F 1 d) : array F 1 d :=
  c_map (@activation F) (x *m W_up w + b_up w) *m W_down w + b_down w.

Definition c_token (x : array F 1 d) (o : array F (groups * per) m) :=
  let y := (x + (c_mxvec o *m W_O w + b_O w))%A in
  if parallel then (y + c_mlp x)%A else (y + c_mlp y)%A.

Definition c_attention i : array F n m :=
  let g := (i %/ per)%N in
  let q := c_each (c_q i) X in
  let k := c_each (c_k g) X in
  c_linear_attention (c_turned turn_num p q) (c_turned turn_num p k)
    (c_turned turn_den p q) (c_turned turn_den p k) (c_each (c_v g) X)
    (bias b g).1 (bias b g).2 P normalise.

Definition c_run_layer : array F n d :=
  let o := mkseq c_attention (groups * per) in
  c_rows n (fun t => c_token (c_row t X)
    (c_rows (groups * per) (fun i => c_row t (nth (c_0 n m) o i)))).

Definition c_absorb_layer : c_biases :=
  mkseq (fun g => let k := c_each (c_k g) X in
    c_state_after (c_turned turn_num p k) (c_turned turn_den p k)
      (c_each (c_v g) X) (bias b g).1 (bias b g).2) groups.

Definition c_defined_head i :=
  let g := (i %/ per)%N in
  c_defined (c_turned turn_den p (c_each (c_q i) X))
    (c_turned turn_den p (c_each (c_k g) X)) (bias b g).2 P normalise.

Definition c_defined_layer := all c_defined_head (iota 0 (groups * per)).

Definition c_shift_layer (k : int) : c_biases :=
  mkseq (fun g => c_shift turn_num turn_den k (bias b g)) groups.

Definition c_blend_layer lambda (new : c_biases) : c_biases :=
  mkseq (fun g =>
    (((1 - lambda) *: (bias b g).1 + lambda *: (bias new g).1)%A,
     ((1 - lambda) *: (bias b g).2 + lambda *: (bias new g).2)%A)) groups.

(* Here b are the biases after the text, and X is the text.                   *)
Definition c_unabsorb_layer lambda : c_biases :=
  mkseq (fun g =>
    let text := c_absorb_text turn_num turn_den (c_no_text F r m p)
                  (c_each (c_k g) X) (c_each (c_v g) X) in
    (c_remove turn_num turn_den (bias b g, p + n%:Z)
       (c_scale_past text lambda) p).1) groups.

Lemma q_c (i : 'I_(groups * per)) x :
  to_mx (c_q i x) = phi_q (l := layer_of w) i (to_mx x).
Proof. by rewrite H_phi !to_mxE. Qed.

Lemma k_c (g : 'I_groups) x :
  to_mx (c_k g x) = phi_k (l := layer_of w) g (to_mx x).
Proof. by rewrite H_phi !to_mxE. Qed.

Lemma v_c (g : 'I_groups) x :
  to_mx (c_v g x) = value (l := layer_of w) g (to_mx x).
Proof. by rewrite !to_mxE. Qed.

Lemma token_c x o :
  to_mx (c_token x o) = token (l := layer_of w) (to_mx x) (to_mx o).
Proof. by rewrite /c_token /= /rest; case: parallel; rewrite !to_mxE. Qed.

Lemma attention_c (i : 'I_(groups * per)) :
  to_mx (c_attention i) =
  attention (l := layer_of w) (to_bias w b) p P (to_mx X) i.
Proof.
rewrite linear_attention_c !(turned_c H_num) !(turned_c H_den).
rewrite (each_c _ (q_c i)) /attention ffunE.
by rewrite -(each_c _ (k_c (Ordinal (group_of_lt i)))) -(each_c _ (v_c _)).
Qed.

(* A layer, ...                                                               *)
Theorem run_layer_c :
  to_mx c_run_layer = run_layer (l := layer_of w) (to_bias w b) p P (to_mx X).
Proof.
rewrite to_mx_rows; apply/row_matrixP => t.
rewrite !rowK token_c to_mx_row; congr token.
rewrite to_mx_rows; apply/row_matrixP => i.
rewrite [LHS]rowK [RHS]rowK to_mx_row nth_mkseq; last exact: ltn_ord.
by rewrite attention_c.
Qed.

(* ... where it is refused, ...                                               *)
Theorem defined_layer_c :
  c_defined_layer =
  defined_layer (l := layer_of w) (to_bias w b) p P (to_mx X).
Proof.
apply/allP/forallP => [ok i | ok i].
  have := ok i; rewrite mem_iota => /(_ (ltn_ord i)).
  rewrite /c_defined_head defined_c !(turned_c H_den) ffunE (each_c _ (q_c i)).
  by rewrite (each_c _ (k_c (Ordinal (group_of_lt i)))).
rewrite mem_iota /= => lt; have := ok (Ordinal lt).
rewrite /c_defined_head defined_c !(turned_c H_den) ffunE.
rewrite -(each_c _ (q_c (Ordinal lt))).
by rewrite -(each_c _ (k_c (Ordinal (group_of_lt (Ordinal lt))))).
Qed.

(* ... the states after it, ...                                               *)
Theorem absorb_layer_c :
  to_bias w c_absorb_layer =
  absorb_layer (l := layer_of w) (to_bias w b) p (to_mx X).
Proof.
apply/ffunP => g; rewrite !ffunE /bias nth_mkseq // state_after_c.
rewrite (turned_c H_num) (turned_c H_den).
by rewrite (each_c _ (k_c g)) (each_c _ (v_c g)).
Qed.

(* ... and seen from elsewhere.                                               *)
Theorem shift_layer_c k :
  to_bias w (c_shift_layer k) = shift_layer (l := layer_of w) (to_bias w b) k.
Proof.
apply/ffunP => g; rewrite !ffunE /bias nth_mkseq //.
exact: shift_c H_num H_den _ _.
Qed.

(* ... The text counted lambda times, ...                                     *)
Theorem blend_layer_c lambda new :
  to_bias w (c_blend_layer lambda new) =
  blend_layer (l := layer_of w) lambda (to_bias w b) (to_bias w new).
Proof.
apply/ffunP => g; rewrite !ffunE /bias nth_mkseq // /to_state /=.
by rewrite !to_mxD !to_mxZ.
Qed.

(* ... or taken out again.                                                    *)
Theorem unabsorb_layer_c lambda :
  to_bias w (c_unabsorb_layer lambda) =
  unabsorb_layer (l := layer_of w) lambda (to_bias w b) p (to_mx X).
Proof.
apply/ffunP => g; rewrite !ffunE /bias nth_mkseq //.
rewrite -(each_c _ (k_c g)) -(each_c _ (v_c g)) -no_text_c.
rewrite -(absorb_text_c H_num H_den) -scale_c.
by rewrite -[(to_state _, _)]/(to_past (_, _)) -(remove_c H_num H_den).
Qed.
End Layer.

(* All layers.                                                                *)
Notation model_of ws :=
  (config_model phi R_num R_den normalise parallel (map to_weights ws)).

Fixpoint to_biases ws (bs : seq c_biases) : biases (model_of ws) :=
  if ws is w :: ws then (to_bias w (head [::] bs), to_biases ws (behead bs))
  else tt.

Fixpoint c_run ws bs p P n (X : array F n d) : array F n d :=
  if ws is w :: ws then
    c_run ws (behead bs) p P (c_run_layer w (head [::] bs) p P X)
  else X.

Fixpoint c_defined_run ws bs p P n (X : array F n d) : bool :=
  if ws is w :: ws then
    c_defined_layer w (head [::] bs) p P X &&
    c_defined_run ws (behead bs) p P (c_run_layer w (head [::] bs) p P X)
  else true.

Fixpoint c_absorb ws bs p P n (X : array F n d) : seq c_biases :=
  if ws is w :: ws then
    c_absorb_layer w (head [::] bs) p X ::
    c_absorb ws (behead bs) p P (c_run_layer w (head [::] bs) p P X)
  else [::].

Fixpoint c_shift_all (ws : seq c_weights) k bs : seq c_biases :=
  if ws is w :: ws then
    c_shift_layer (head [::] bs) k :: c_shift_all ws k (behead bs)
  else [::].

Fixpoint c_blend (ws : seq c_weights) lambda bs new : seq c_biases :=
  if ws is w :: ws then
    c_blend_layer (head [::] bs) lambda (head [::] new) ::
    c_blend ws lambda (behead bs) (behead new)
  else [::].

Fixpoint c_unabsorb ws lambda bs p P n (X : array F n d) : seq c_biases :=
  if ws is w :: ws then
    let old := c_unabsorb_layer w (head [::] bs) p X lambda in
    old :: c_unabsorb ws lambda (behead bs) p P (c_run_layer w old p P X)
  else [::].

Definition c_convert_strength ws lambda p P bs M (prompt : array F M d) :=
  c_shift_all ws (- M%:Z) (c_blend ws lambda bs (c_absorb ws bs p P prompt)).

Definition c_unconvert ws lambda p P bs M (prompt : array F M d) :=
  c_unabsorb ws lambda (c_shift_all ws M%:Z bs) p P prompt.

Definition c_convert ws p P bs M (prompt : array F M d) :=
  c_shift_all ws (- M%:Z) (c_absorb ws bs p P prompt).

(* What the model puts out, ...                                               *)
Theorem run_c ws bs p P n (X : array F n d) :
  to_mx (c_run ws bs p P X) = run p P (to_biases ws bs) (to_mx X).
Proof. by elim: ws bs X => //= w ws IH bs X; rewrite IH run_layer_c. Qed.

(* ... whether it is refused on the way, ...                                  *)
Theorem defined_run_c ws bs p P n (X : array F n d) :
  c_defined_run ws bs p P X = defined_run p P (to_biases ws bs) (to_mx X).
Proof.
elim: ws bs X => //= w ws IH bs X.
by rewrite IH defined_layer_c run_layer_c.
Qed.

(* ... and the states of all its layers after the text.                       *)
Theorem absorb_c ws bs p P n (X : array F n d) :
  to_biases ws (c_absorb ws bs p P X) = absorb p P (to_biases ws bs) (to_mx X).
Proof.
elim: ws bs X => //= w ws IH bs X.
by rewrite IH absorb_layer_c run_layer_c.
Qed.

(* The same states, seen from k positions further on.                         *)
Theorem shift_all_c ws k bs :
  to_biases ws (c_shift_all ws k bs) = shift_all k (to_biases ws bs).
Proof. by elim: ws bs => //= w ws IH bs; rewrite IH shift_layer_c. Qed.

(* The biases that a prompt becomes.                                          *)
Theorem convert_c ws p P bs M (prompt : array F M d) :
  to_biases ws (c_convert ws p P bs prompt) =
  convert p P (to_biases ws bs) (to_mx prompt).
Proof. by rewrite shift_all_c absorb_c. Qed.

(* The same with the prompt counted lambda times, ...                         *)
Theorem convert_strength_c ws lambda p P bs M (prompt : array F M d) :
  to_biases ws (c_convert_strength ws lambda p P bs prompt) =
  convert_strength lambda p P (to_biases ws bs) (to_mx prompt).
Proof.
rewrite shift_all_c /convert_strength -absorb_c; congr shift_all.
move: (c_absorb ws bs p P prompt) => new.
by elim: ws bs new => //= w ws IH bs new; rewrite IH blend_layer_c.
Qed.

(* ... and the prompt taken out again.                                        *)
Theorem unconvert_c ws lambda p P bs M (prompt : array F M d) :
  to_biases ws (c_unconvert ws lambda p P bs prompt) =
  unconvert lambda p P (to_biases ws bs) (to_mx prompt).
Proof.
rewrite /unconvert -shift_all_c /c_unconvert.
elim: ws {bs} (c_shift_all _ _ _) prompt => //= w ws IH bs prompt.
by rewrite IH run_layer_c unabsorb_layer_c.
Qed.
End Conversion.
