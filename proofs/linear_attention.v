(* Linearized attention: the definition, three forms equal to it, and the     *)
(* algebra of its state.  Mirrors refimpl/attention/linear_attention.py and   *)
(* refimpl/attention/state.py.                                                *)
(*                                                                            *)
(*   F                any field; n tokens, r features, m values               *)
(*   fq fk gq gk v    features of the numerator and of the denominator, and   *)
(*                    values; a token is a row                                *)
(*   S z              the state to start from                                 *)
(*   P                token t sees the tokens s < max(t+1, P): 0 is causal,   *)
(*                    n is full, between them a prefix mask                   *)
(*   normalise        divide by the denominator, or not                       *)
(*   by_sum           the definition, as (num, den) of every token, and state *)
(*   quadratic, recurrent, chunked                                            *)
(*                    the forms of the Python, each returning such a pair     *)
(*   past             (S, z) and the position at which the next token is read *)
(*   no_text, absorb_text, shift_past, join, remove, scale                    *)
(*                    no_text, absorb, shift, join, remove, scale of state.py *)
(*   attend, accepts  attention over a text read where the past ends          *)
(*   no_rotation      the R_p of a model without positions                    *)
(* Padding, which the Python has too, is not modelled.                        *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section Forms.
Variable F : fieldType.

(* A past: S, and z as a column.  Its position is kept apart.                 *)
Definition state r m := ('M[F]_(r, m) * 'cV[F]_r)%type.

(* What t sees.                                                               *)
Definition seen P t s := (s < maxn t.+1 P)%N.

Section Sum.
Variables (n r m : nat) (fq fk gq gk : 'M[F]_(n, r)) (v : 'M[F]_(n, m)).
Variables (S : 'M[F]_(r, m)) (z : 'cV[F]_r) (P : nat).

Definition S_at t := S + \sum_(s < n | seen P t s) (row s fk)^T *m row s v.

Definition z_at t := z + \sum_(s < n | seen P t s) (row s gk)^T.

Definition num t := row t fq *m S_at t.

Definition den t := (row t gq *m z_at t) 0 0.

(* o_t = fq_t S_t / gq_t z_t.  MathComp's x / 0 is 0; the program refuses     *)
(* there, and [defined] says when it does not.                                *)
Definition linear_attention (normalise : bool) : 'M[F]_(n, m) :=
  \matrix_(t < n) (if normalise then (den t)^-1 *: num t else num t).

Definition defined (normalise : bool) := normalise ==> [forall t, den t != 0].

Definition state_after : state r m :=
  (S + \sum_(s < n) (row s fk)^T *m row s v, z + \sum_(s < n) (row s gk)^T).
End Sum.
End Forms.

(* R_p for every position p: all that attention asks of RoPE.  rope.v makes   *)
(* it of points of the circle.                                                *)
Record rotation (F : fieldType) r := Rotation {
  turn :> int -> 'M[F]_r;
  turnD : forall a b, turn (a + b) = turn a *m turn b;
  turnT : forall a, (turn a)^T = turn (- a);
  turn0 : turn 0 = 1%:M }.

(* The features of tokens read from position p on: row t turned by R_(p+t).   *)
Definition turned (F : fieldType) n r (R : rotation F r) (p : int)
    (f : 'M[F]_(n, r)) :=
  \matrix_(t < n) (row t f *m (R (p + t%:Z))^T).

(* The same past, seen from k positions further on.  RoPE after phi turns     *)
(* S alone (Rg = no rotation); before the kernel, with phi = identity, both.  *)
Definition shift (F : fieldType) r m (Rf Rg : rotation F r) (k : int)
  (b : state F r m) : state F r m := (Rf k *m b.1, Rg k *m b.2).

(* ------------------------------------------------------------------------- *)
(* The definition as lists: for each token (numerator, denominator); then the *)
(* state after the text.  The three forms are compared with it as pairs, so   *)
(* that they also agree on which denominators are 0.                          *)
Definition rows (T : Type) n d (X : 'M[T]_(n, d)) :=
  [seq row t X | t <- enum 'I_n].

Section Output.
Variables (F : fieldType) (m : nat).

(* From numerators and denominators to the output.  x / 0 is 0 here.          *)
Definition output (normalise : bool) (o : seq ('rV[F]_m * F)) : seq 'rV[F]_m :=
  [seq if normalise then x.2^-1 *: x.1 else x.1 | x <- o].

(* No denominator is 0: the program does not refuse.                          *)
Definition accepted (normalise : bool) (o : seq ('rV[F]_m * F)) :=
  normalise ==> all (fun x => x.2 != 0) o.
End Output.

Section Quadratic.
Variables (F : fieldType) (n r m : nat) (fq fk gq gk : 'M[F]_(n, r)).
Variables (v : 'M[F]_(n, m)) (S : 'M[F]_(r, m)) (z : 'cV[F]_r) (P : nat).

Definition by_sum : seq ('rV[F]_m * F) * state F r m :=
  ([seq (num fq fk v S P t, den gq gk z P t) | t <- enum 'I_n],
   state_after fk gk v S z).

(* What the definition as lists says is what the definition says.             *)
Theorem output_by_sum normalise :
  output normalise by_sum.1 =
  rows (linear_attention fq fk gq gk v S z P normalise).
Proof. by rewrite /output -map_comp; apply: eq_map => t; rewrite rowK. Qed.

Theorem accepted_by_sum normalise :
  accepted normalise by_sum.1 = defined gq gk z P normalise.
Proof.
rewrite /accepted /defined all_map; congr (_ ==> _).
apply/allP/forallP => [H t | H t _]; last exact: H.
by apply: H; rewrite mem_enum.
Qed.

(* The matrix A: A_ts = [t sees s] q_t . k_s                                  *)
Definition scores (q k : 'M[F]_(n, r)) : 'M[F]_n :=
  \matrix_(t, s) (if seen P t s then (q *m k^T) t s else 0).

Definition quadratic : seq ('rV[F]_m * F) * state F r m :=
  let N := scores fq fk *m v + fq *m S in
  let D := scores gq gk *m const_mx 1 + gq *m z : 'cV_n in
  ([seq (row t N, D t 0) | t <- enum 'I_n],
   (S + fk^T *m v, z + gk^T *m const_mx 1)).
End Quadratic.

Section QuadraticProof.
Variables (F : fieldType) (n r : nat).
Implicit Types (f k : 'M[F]_(n, r)) (P : nat).

Lemma sum_outer m f (v : 'M[F]_(n, m)) :
  \sum_(s < n) (row s f)^T *m row s v = f^T *m v.
Proof.
apply/matrixP => a b; rewrite summxE mxE; apply: eq_bigr => s _.
by rewrite !mxE big_ord1 !mxE.
Qed.

Lemma row_scores m P f k (v : 'M[F]_(n, m)) t :
  row t (scores P f k *m v) =
  row t f *m \sum_(s < n | seen P t s) (row s k)^T *m row s v.
Proof.
apply/rowP => j; rewrite mulmx_sumr summxE mxE mxE [RHS]big_mkcond.
apply: eq_bigr => s _; rewrite mxE; case: seen; last by rewrite mul0r.
rewrite mulmxA [in RHS]mxE big_ord1 [row s v 0 j]mxE; congr (_ * _).
by rewrite !mxE; apply: eq_bigr => i _; rewrite !mxE.
Qed.

(* A denominator is a numerator whose values are all 1.                       *)
Lemma z_atE k z P t : z_at k z P t = S_at k (const_mx 1 : 'cV_n) z P t.
Proof.
congr (_ + _); apply: eq_bigr => s _.
by apply/matrixP => i j; rewrite !mxE big_ord1 !mxE mulr1.
Qed.

Lemma denE f k z P t : den f k z P t = num f k (const_mx 1 : 'cV_n) z P t 0 0.
Proof. by rewrite /den z_atE. Qed.

Lemma sum_rowT k : \sum_(s < n) (row s k)^T = k^T *m const_mx 1.
Proof.
rewrite -sum_outer; apply: eq_bigr => s _.
by apply/matrixP => i j; rewrite !mxE big_ord1 !mxE mulr1.
Qed.

Lemma num_scores m f k (v : 'M[F]_(n, m)) S P t :
  num f k v S P t = row t (scores P f k *m v + f *m S).
Proof. by rewrite linearD /= row_scores row_mul addrC -mulmxDr. Qed.
End QuadraticProof.

(* Quadratic: the masked matrix of scores gives every numerator, every        *)
(* denominator and the state of the definition.                               *)
Theorem quadratic_eq_sum (F : fieldType) n r m (fq fk gq gk : 'M[F]_(n, r))
    (v : 'M[F]_(n, m)) S z P :
  quadratic fq fk gq gk v S z P = by_sum fq fk gq gk v S z P.
Proof.
rewrite /quadratic /by_sum /state_after sum_outer sum_rowT; congr (_, _).
by apply: eq_map => t; rewrite num_scores denE num_scores [in RHS]mxE.
Qed.

Lemma take_text n k :
  take k (enum 'I_n) = [seq s : 'I_n <- enum 'I_n | (s < k)%N].
Proof.
apply: (inj_map val_inj); rewrite -(filter_map val (fun i => i < k)%N) map_take.
rewrite val_enum_ord take_iota; have [kn | nk] := leqP k n.
  by rewrite (filter_iota_ltn 0).
apply/esym/all_filterP/allP => i; rewrite mem_iota => /andP[_ ltin].
exact: ltn_trans ltin nk.
Qed.

Lemma sum_take (V : zmodType) n k (f : 'I_n -> V) :
  \sum_(s <- take k (enum 'I_n)) f s = \sum_(s < n | (s < k)%N) f s.
Proof. by rewrite take_text big_filter big_enum_cond. Qed.

(* ------------------------------------------------------------------------- *)
(* The tokens are read in the order of [enum 'I_n], which is 0, ..., n-1;     *)
(* [take] and [drop] are the slices of the Python.                            *)
Section Streams.
Variables (F : fieldType) (n r m : nat) (fq fk gq gk : 'M[F]_(n, r)).
Variables (v : 'M[F]_(n, m)) (S : 'M[F]_(r, m)) (z : 'cV[F]_r) (P : nat).
Implicit Types (b : state F r m) (l : seq 'I_n) (t s : 'I_n).
Local Notation text := (enum 'I_n).

(* One token is written into a state; one token is read.                      *)
Definition write b s : state F r m :=
  (b.1 + (row s fk)^T *m row s v, b.2 + (row s gk)^T).

Definition read b t : 'rV[F]_m * F := (row t fq *m b.1, (row t gq *m b.2) 0 0).

(* Recurrent.  Before token t is read, all that it sees and that was not yet  *)
(* written is written: the first P tokens before the first is read.           *)
Definition recurrent_step
    (past : nat * state F r m * seq ('rV[F]_m * F)) (t : 'I_n) :=
  let: (written, b, o) := past in
  let upto := maxn t.+1 P in
  let b' := foldl write b (drop written (take upto text)) in
  (maxn written upto, b', rcons o (read b' t)).

Definition recurrent : seq ('rV[F]_m * F) * state F r m :=
  let: (_, b, o) := foldl recurrent_step (0%N, (S, z), [::]) text in (o, b).

(* Consecutive pieces of c tokens, the last perhaps shorter.                  *)
Fixpoint cut c fuel l : seq (seq 'I_n) :=
  if fuel is fuel'.+1 then
    if l is [::] then [::] else take c l :: cut c fuel' (drop c l)
  else [::].

Definition spans c l := cut c (size l) l.

(* The rows of f whose numbers are in l.                                      *)
Definition piece d (f : 'M[F]_(n, d)) l : 'M[F]_(size l, d) :=
  \matrix_i row (tnth (in_tuple l) i) f.

(* Chunked.  The first P tokens are written, piece by piece, and then read,   *)
(* piece by piece; every other piece is read, causally, by its own matrix of  *)
(* scores and the state before it, and then written.                          *)
Definition write_piece b l : state F r m :=
  (b.1 + (piece fk l)^T *m piece v l, b.2 + (piece gk l)^T *m const_mx 1).

Definition read_piece b l : seq ('rV[F]_m * F) :=
  [seq (row i (piece fq l *m b.1), (piece gq l *m b.2) i 0)
     | i <- enum 'I_(size l)].

Definition chunk_step (past : seq ('rV[F]_m * F) * state F r m) l :=
  let: (o, b) := past in
  let: (o', b') := quadratic (piece fq l) (piece fk l) (piece gq l)
                     (piece gk l) (piece v l) b.1 b.2 0 in
  (o ++ o', b').

Definition chunked c : seq ('rV[F]_m * F) * state F r m :=
  let prefix := spans c (take P text) in
  let b := foldl write_piece (S, z) prefix in
  foldl chunk_step (flatten [seq read_piece b l | l <- prefix], b)
    (spans c (drop P text)).

(* Proofs.                                                                    *)
Lemma foldl_write b l : foldl write b l =
  (b.1 + \sum_(s <- l) (row s fk)^T *m row s v,
   b.2 + \sum_(s <- l) (row s gk)^T).
Proof.
elim: l b => [|s l IH] b /=; first by rewrite !big_nil !addr0; case: b.
by rewrite IH !big_cons !addrA.
Qed.

(* The state that token t reads.                                              *)
Definition state_of t := foldl write (S, z) (take (maxn t.+1 P) text).

Lemma read_seen t : read (state_of t) t = (num fq fk v S P t, den gq gk z P t).
Proof. by rewrite /state_of foldl_write !sum_take. Qed.

Lemma state_afterE : foldl write (S, z) text = state_after fk gk v S z.
Proof. by rewrite foldl_write !big_enum. Qed.

Lemma by_sumE : by_sum fq fk gq gk v S z P =
  ([seq read (state_of t) t | t <- text], foldl write (S, z) text).
Proof.
by rewrite state_afterE; congr (_, _); apply: eq_map => t; rewrite read_seen.
Qed.

Lemma recurrent_stepsE k : (k <= n)%N ->
  let w := if k is 0 then 0%N else maxn k P in
  foldl recurrent_step (0%N, (S, z), [::]) (take k text) =
  (w, foldl write (S, z) (take w text),
   [seq read (state_of t) t | t <- take k text]).
Proof.
elim: k => [|k IH] ltkn; first by rewrite /= !take0.
set t := Ordinal ltkn.
have -> : take k.+1 text = rcons (take k text) t.
  by rewrite (take_nth t) ?size_enum_ord // -[k]/(val t) nth_ord_enum.
rewrite foldl_rcons IH 1?ltnW // map_rcons /= -/(state_of t).
set w := if k is 0 then _ else _.
have ww : (w <= maxn k.+1 P)%N.
  by rewrite /w; case: (k) => // j; rewrite geq_max !leq_max leqnn leqnSn orbT.
rewrite (maxn_idPr ww) -foldl_cat.
have -> : take w text ++ drop w (take (maxn k.+1 P) text) =
          take (maxn k.+1 P) text.
  by rewrite -[in LHS](take_take ww) cat_take_drop.
by [].
Qed.

Lemma recurrentE : recurrent = by_sum fq fk gq gk v S z P.
Proof.
rewrite by_sumE /recurrent; have := recurrent_stepsE (leqnn n).
rewrite /= take_oversize ?size_enum_ord // => ->.
congr (_, foldl _ _ _).
case: n text (size_enum_ord n) => [|k] l; first by case: l.
by move=> sl; rewrite take_oversize // sl leq_maxl.
Qed.

Lemma flatten_spans c l : (0 < c)%N -> flatten (spans c l) = l.
Proof.
move=> c0; rewrite /spans; move: {-1}(size l) (leqnn (size l)) => fuel.
elim: fuel l => [|fuel IH] [|t l] //=; rewrite ?ltn0 // ltnS => sl.
have sd : (size (drop c (t :: l)) <= fuel)%N.
  by rewrite size_drop -(prednK c0) subSS (leq_trans (leq_subr _ _)).
by rewrite IH // cat_take_drop.
Qed.

Lemma tnth_piece l : [seq tnth (in_tuple l) i | i <- enum 'I_(size l)] = l.
Proof. exact: (map_tnth_enum (in_tuple l)). Qed.

Lemma sum_piece (V : zmodType) k l (f : 'I_n -> V) :
  \sum_(i < size l | (i < k)%N) f (tnth (in_tuple l) i) =
  \sum_(s <- take k l) f s.
Proof.
by rewrite -[in RHS](tnth_piece l) -map_take big_map sum_take.
Qed.

Lemma row_piece d (f : 'M[F]_(n, d)) l i :
  row i (piece f l) = row (tnth (in_tuple l) i) f.
Proof. exact: rowK. Qed.

Lemma write_pieceE b l : write_piece b l = foldl write b l.
Proof.
rewrite /write_piece -sum_outer -sum_rowT foldl_write; congr (_ + _, _ + _).
  by rewrite [RHS]big_tnth; apply: eq_bigr => i _; rewrite !row_piece.
by rewrite [RHS]big_tnth; apply: eq_bigr => i _; rewrite !row_piece.
Qed.

Lemma write_piecesE b ls : foldl write_piece b ls = foldl write b (flatten ls).
Proof.
by elim: ls b => //= l ls IH b; rewrite IH write_pieceE foldl_cat.
Qed.

Lemma read_pieceE b l : read_piece b l = [seq read b t | t <- l].
Proof.
rewrite -[in RHS](tnth_piece l) -map_comp.
by apply: eq_map => i; rewrite /= /read -!row_piece -!row_mul [in RHS]mxE.
Qed.

(* Tokens written and read one by one, causally.                              *)
Fixpoint reads b l : seq ('rV[F]_m * F) :=
  if l is t :: l' then read (write b t) t :: reads (write b t) l' else [::].

Lemma reads_cat b l l' :
  reads b (l ++ l') = reads b l ++ reads (foldl write b l) l'.
Proof. by elim: l b => //= t l IH b; rewrite IH. Qed.

Lemma readsE b l : reads b l =
  [seq read (foldl write b (take i.+1 l)) (tnth (in_tuple l) i)
     | i : 'I_(size l) <- enum 'I_(size l)].
Proof.
elim: l b => [|t l IH] b /=; first by rewrite enum_ord0.
rewrite enum_ordSl /= take0 IH -map_comp; congr (_ :: _); apply: eq_map => i /=.
by rewrite !(tnth_nth t) lift0.
Qed.

Lemma quadratic_piece b l :
  quadratic (piece fq l) (piece fk l) (piece gq l) (piece gk l) (piece v l)
    b.1 b.2 0 = (reads b l, foldl write b l).
Proof.
rewrite -write_pieceE /write_piece -[(_ + _, _)]/((quadratic (piece fq l)
  (piece fk l) (piece gq l) (piece gk l) (piece v l) b.1 b.2 0).2).
rewrite quadratic_eq_sum /by_sum readsE; congr (_, _).
apply: eq_map => i; rewrite foldl_write -!sum_piece /num /den /S_at /z_at.
rewrite !row_piece /read /seen maxn0 /=.
congr pair; last congr fun_of_matrix; congr (_ *m (_ + _));
  by apply: eq_bigr => s _; rewrite !row_piece.
Qed.

Lemma chunk_stepE o b l :
  chunk_step (o, b) l = (o ++ reads b l, foldl write b l).
Proof. by rewrite /chunk_step quadratic_piece. Qed.

Lemma chunk_stepsE o b ls : foldl chunk_step (o, b) ls =
  (o ++ reads b (flatten ls), foldl write b (flatten ls)).
Proof.
elim: ls o b => [|l ls IH] o b; first by rewrite /= cats0.
rewrite -[LHS]/(foldl chunk_step (chunk_step (o, b) l) ls) chunk_stepE IH /=.
by rewrite reads_cat foldl_cat catA.
Qed.

Lemma reads_seen k : (P <= k)%N ->
  reads (foldl write (S, z) (take k text)) (drop k text) =
  [seq read (state_of t) t | t <- drop k text].
Proof.
move: {2}(n - k)%N (erefl (n - k)%N) => j; elim: j k => [|j IH] k nk Pk.
  by rewrite drop_oversize // size_enum_ord -subn_eq0 nk.
have ltkn : (k < n)%N by rewrite -subn_gt0 nk.
rewrite (drop_nth (Ordinal ltkn)) ?size_enum_ord //=.
have -> : nth (Ordinal ltkn) text k = Ordinal ltkn.
  by rewrite -[k]/(val (Ordinal ltkn)) nth_ord_enum.
rewrite -IH ?(leqW Pk) ?subnS ?nk //.
have E : write (foldl write (S, z) (take k text)) (Ordinal ltkn) =
         foldl write (S, z) (take k.+1 text).
  rewrite -foldl_rcons (take_nth (Ordinal ltkn)) ?size_enum_ord //.
  by rewrite -[X in nth _ _ X]/(val (Ordinal ltkn)) nth_ord_enum.
by rewrite E /state_of /= (maxn_idPl (leqW Pk)).
Qed.

Lemma chunkedE c : (0 < c)%N -> chunked c = by_sum fq fk gq gk v S z P.
Proof.
move=> c0; rewrite /chunked chunk_stepsE write_piecesE !flatten_spans //.
rewrite -foldl_cat cat_take_drop by_sumE; congr (_, _).
rewrite reads_seen // -[in RHS](cat_take_drop P text) map_cat; congr (_ ++ _).
rewrite (eq_map (read_pieceE _)) -map_flatten flatten_spans //.
apply/eq_in_map => t; rewrite take_text mem_filter => /andP[tP _].
by rewrite /state_of (maxn_idPr tP) take_text.
Qed.
End Streams.

(* Recurrent: a running state, into which a prefix is written before it is    *)
(* read, gives what the definition gives.                                     *)
Theorem recurrent_eq_sum (F : fieldType) n r m (fq fk gq gk : 'M[F]_(n, r))
    (v : 'M[F]_(n, m)) S z P :
  recurrent fq fk gq gk v S z P = by_sum fq fk gq gk v S z P.
Proof. exact: recurrentE. Qed.

(* Chunked: so do chunks of any length from 1 on, under any mask.             *)
Theorem chunked_eq_sum (F : fieldType) n r m (fq fk gq gk : 'M[F]_(n, r))
    (v : 'M[F]_(n, m)) S z P chunk (H_chunk : (0 < chunk)%N) :
  chunked fq fk gq gk v S z P chunk = by_sum fq fk gq gk v S z P.
Proof. exact: chunkedE. Qed.

(* ------------------------------------------------------------------------- *)
(* Prefill and decode: a text split anywhere from its prefix on.  A is read   *)
(* under the mask, B causally from the state after A.                         *)
Section Split.
Variables (F : fieldType) (M n r : nat) (P : nat).
Hypothesis H_P : (P <= M)%N.

Lemma seen_AB (t : 'I_M) (s : 'I_n) : seen P (lshift n t) (rshift M s) = false.
Proof.
apply/negbTE; rewrite -leqNgt geq_max /= (leq_trans (ltn_ord t)) ?leq_addr //.
exact: leq_trans H_P (leq_addr _ _).
Qed.

Lemma seen_BA (t : 'I_n) (s : 'I_M) : seen P (rshift M t) (lshift n s).
Proof.
by rewrite /seen leq_max ltnS /= (leq_trans (ltnW (ltn_ord s))) ?leq_addr.
Qed.

Lemma seen_BB (t s : 'I_n) : seen P (rshift M t) (rshift M s) = seen 0 t s.
Proof.
rewrite /seen maxn0 (maxn_idPl _) /=; last first.
  by rewrite (leq_trans H_P) // -addnS leq_addr.
by rewrite !ltnS leq_add2l.
Qed.

Section Num.
Variables (m : nat) (S : 'M[F]_(r, m)).
Variables (fqA fkA : 'M[F]_(M, r)) (vA : 'M[F]_(M, m)).
Variables (fqB fkB : 'M[F]_(n, r)) (vB : 'M[F]_(n, m)).

Lemma num_A_of_AB t :
  num (col_mx fqA fqB) (col_mx fkA fkB) (col_mx vA vB) S P (lshift n t) =
  num fqA fkA vA S P t.
Proof.
rewrite /num /S_at rowKu big_split_ord /= [X in _ + (_ + X)]big_pred0.
  by rewrite addr0; under eq_bigr do rewrite !rowKu.
by move=> s; rewrite seen_AB.
Qed.

Lemma num_B_of_AB t :
  num (col_mx fqA fqB) (col_mx fkA fkB) (col_mx vA vB) S P (rshift M t) =
  num fqB fkB vB (S + \sum_(s < M) (row s fkA)^T *m row s vA) 0 t.
Proof.
rewrite /num /S_at rowKd big_split_ord /= addrA; congr (_ *m (_ + _ + _)).
  by apply: eq_big => s; [rewrite seen_BA | rewrite !rowKu].
by apply: eq_big => s; [rewrite seen_BB | rewrite !rowKd].
Qed.
End Num.

Variables (m : nat) (S : 'M[F]_(r, m)) (z : 'cV[F]_r).
Variables (fqA fkA gqA gkA : 'M[F]_(M, r)) (vA : 'M[F]_(M, m)).
Variables (fqB fkB gqB gkB : 'M[F]_(n, r)) (vB : 'M[F]_(n, m)).
Let b := state_after fkA gkA vA S z.

Lemma den_A_of_AB t :
  den (col_mx gqA gqB) (col_mx gkA gkB) z P (lshift n t) = den gqA gkA z P t.
Proof. by rewrite !denE -col_mx_const num_A_of_AB. Qed.

Lemma den_B_of_AB t :
  den (col_mx gqA gqB) (col_mx gkA gkB) z P (rshift M t) =
  den gqB gkB (z + \sum_(s < M) (row s gkA)^T) 0 t.
Proof.
by rewrite !denE -col_mx_const num_B_of_AB sum_rowT sum_outer.
Qed.

(* The output over the whole text is the output over A, followed by the       *)
(* output over B alone that starts from the state after A.                    *)
Theorem split_invariance normalise :
  linear_attention (col_mx fqA fqB) (col_mx fkA fkB) (col_mx gqA gqB)
    (col_mx gkA gkB) (col_mx vA vB) S z P normalise =
  col_mx (linear_attention fqA fkA gqA gkA vA S z P normalise)
    (linear_attention fqB fkB gqB gkB vB b.1 b.2 0 normalise).
Proof.
apply/row_matrixP => t; case: (split_ordP t) => {}t ->.
  by rewrite rowKu !rowK num_A_of_AB den_A_of_AB.
by rewrite rowKd !rowK num_B_of_AB den_B_of_AB.
Qed.

(* One pass meets a zero denominator exactly if one of the two parts does.    *)
Theorem split_defined normalise :
  defined (col_mx gqA gqB) (col_mx gkA gkB) z P normalise =
  defined gqA gkA z P normalise && defined gqB gkB b.2 0 normalise.
Proof.
rewrite /defined; case: normalise => //=; apply/forallP/andP => [H | [HA HB] t].
  split; apply/forallP => t; first by rewrite -den_A_of_AB.
  by rewrite -den_B_of_AB.
case: (split_ordP t) => {}t ->; first by rewrite den_A_of_AB; move/forallP: HA.
by rewrite den_B_of_AB; move/forallP: HB.
Qed.

(* The state after the whole text is the state after B, begun after A.        *)
Theorem split_state :
  state_after (col_mx fkA fkB) (col_mx gkA gkB) (col_mx vA vB) S z =
  state_after fkB gkB vB b.1 b.2.
Proof.
rewrite /b /state_after /= !sum_outer !sum_rowT !tr_col_mx -col_mx_const.
by rewrite !mul_row_col !addrA.
Qed.
End Split.

(* ------------------------------------------------------------------------- *)
(* Causality: two texts that agree in the query of t, and in the keys and     *)
(* values of all tokens that t sees, give the same output at t, and the same  *)
(* denominator.                                                               *)
Theorem causality (F : fieldType) n r m (S : 'M[F]_(r, m)) (z : 'cV[F]_r) P
    (fq fk gq gk fq' fk' gq' gk' : 'M[F]_(n, r)) (v v' : 'M[F]_(n, m)) t
    (H_fq : row t fq = row t fq') (H_gq : row t gq = row t gq')
    (H_seen : forall s : 'I_n, seen P t s ->
       [/\ row s fk = row s fk', row s gk = row s gk' & row s v = row s v']) :
  den gq gk z P t = den gq' gk' z P t /\
  forall normalise,
    row t (linear_attention fq fk gq gk v S z P normalise) =
    row t (linear_attention fq' fk' gq' gk' v' S z P normalise).
Proof.
have Ed : den gq gk z P t = den gq' gk' z P t.
  by rewrite /den H_gq /z_at; under eq_bigr => s /H_seen[_ -> _] do [].
split=> // normalise; rewrite !rowK Ed /num H_fq /S_at.
by under eq_bigr => s /H_seen[-> _ ->] do [].
Qed.

(* And on no fewer: for every t and every s that it sees there are texts that *)
(* differ in the value of s alone, and whose outputs at t differ; with the    *)
(* same features in numerator and denominator (r = 2: k_s = e_1 and no other  *)
(* key, z = e_2, q_t = e_1 and all other queries e_2: every denominator is    *)
(* 1).                                                                        *)
Theorem causality_sharp (F : fieldType) n P (t s : 'I_n) normalise
    (H_seen : seen P t s) :
  exists (q k : 'M[F]_(n, 2)) (v v' : 'cV[F]_n) (S : 'M[F]_(2, 1))
    (z : 'cV[F]_2),
  [/\ forall s', s' != s -> row s' v = row s' v',
      defined q k z P normalise &
      row t (linear_attention q k q k v S z P normalise) !=
      row t (linear_attention q k q k v' S z P normalise)].
Proof.
pose q : 'M[F]_(n, 2) :=
  \matrix_(u, j) (if u == t then j == 0 else j == 1)%:R.
pose k : 'M[F]_(n, 2) := \matrix_(u, j) ((u == s) && (j == 0))%:R.
pose z : 'cV[F]_2 := \col_j (j == 1)%:R.
exists q, k, (delta_mx s 0), 0, 0, z.
have zE u : z_at k z P u = \col_j (if j == 0 then (seen P u s)%:R else 1).
  apply/colP => j; rewrite /z_at mxE summxE [RHS]mxE [z j 0]mxE.
  under eq_bigr do rewrite !mxE.
  have [->|j0] := eqVneq j 0; last first.
    have -> : (j == 1)%:R = 1 :> F by case: j j0 => [[|[|//]] ?].
    by rewrite big1 ?addr0 // => i _; rewrite andbF.
  rewrite add0r; case Hs: (seen P u s); last first.
    by rewrite big1 // => i; case: eqP => [-> | //]; rewrite Hs.
  rewrite (bigD1 s) //= eqxx big1 ?addr0 //.
  by move=> i /andP[_ /negPf ->].
have dE u : den q k z P u = 1.
  rewrite /den zE mxE big_ord_recl big_ord1 !mxE /=.
  by case: eqP => [->|_]; rewrite ?H_seen /= ?mul0r ?mulr1 ?addr0 ?add0r.
split.
- by move=> s' ns; apply/rowP => j; rewrite !mxE !ord1 (negPf ns).
- rewrite /defined; case: normalise => //.
  by apply/forallP => u; rewrite dE oner_neq0.
rewrite !rowK dE invr1 !scale1r !if_same.
have nE v : num q k v (0 : 'M_(2, 1)) P t = (v s 0)%:M.
  apply/rowP => j; rewrite ord1 /num /S_at add0r mulmx_sumr summxE.
  rewrite (bigD1 s) //= big1 ?addr0.
    rewrite !mxE big_ord_recl big_ord1 !mxE /= !big_ord1 !mxE !eqxx /=.
    by rewrite mul1r mul0r addr0 mul1r mulr1n.
  move=> u /andP[_ /negPf us].
  rewrite !mxE big_ord_recl big_ord1 !mxE !big_ord1 !mxE us /=.
  by rewrite !mul0r !mulr0 addr0.
rewrite !nE !mxE !eqxx; apply/eqP => /matrixP /(_ 0 0) /eqP.
by rewrite !mxE mulr1n mul0rn oner_eq0.
Qed.

(* ------------------------------------------------------------------------- *)
(* Positions.                                                                 *)
Section Turned.
Variables (F : fieldType) (r : nat) (R : rotation F r).

Lemma turnK a : (R a)^T *m R a = 1%:M.
Proof. by rewrite turnT -turnD addNr turn0. Qed.

(* Positions go on from one text to the next.                                 *)
Lemma turned_cat M n p (f : 'M[F]_(M, r)) (g : 'M[F]_(n, r)) :
  turned R p (col_mx f g) = col_mx (turned R p f) (turned R (p + M%:Z) g).
Proof.
apply/row_matrixP => t; case: (split_ordP t) => {}t ->.
  by rewrite rowKu !rowK rowKu.
by rewrite rowKd !rowK rowKd /= PoszD addrA.
Qed.

(* Reading k further on turns every feature by R_k.                           *)
Lemma turned_add n p k (f : 'M[F]_(n, r)) :
  turned R (p + k) f = turned R p f *m (R k)^T.
Proof.
apply/row_matrixP => t; rewrite row_mul !rowK -mulmxA -trmx_mul -turnD.
by rewrite addrA [k + p]addrC.
Qed.

Lemma S_at_turned n m k (f : 'M[F]_(n, r)) (v : 'M[F]_(n, m)) S P t :
  S_at (f *m (R k)^T) v (R k *m S) P t = R k *m S_at f v S P t.
Proof.
rewrite /S_at mulmxDr mulmx_sumr; congr (_ + _); apply: eq_bigr => s _.
by rewrite row_mul trmx_mul trmxK mulmxA.
Qed.

Lemma num_turned n m k (q f : 'M[F]_(n, r)) (v : 'M[F]_(n, m)) S P t :
  num (q *m (R k)^T) (f *m (R k)^T) v (R k *m S) P t = num q f v S P t.
Proof.
by rewrite /num S_at_turned row_mul -mulmxA [_^T *m _]mulmxA turnK mul1mx.
Qed.

Lemma den_turned n k (q f : 'M[F]_(n, r)) z P t :
  den (q *m (R k)^T) (f *m (R k)^T) (R k *m z) P t = den q f z P t.
Proof. by rewrite !denE num_turned. Qed.
End Turned.

(* No positions: nothing turns.                                               *)
Section NoRotation.
Variables (F : fieldType) (r : nat).

Definition no_rotation : rotation F r.
Proof.
by exists (fun=> 1%:M) => *; rewrite ?mulmx1 ?trmx1.
Defined.

Lemma turned_no n p (f : 'M[F]_(n, r)) : turned no_rotation p f = f.
Proof. by apply/row_matrixP => t; rewrite rowK trmx1 mulmx1. Qed.
End NoRotation.

(* ------------------------------------------------------------------------- *)
(* The algebra of states, as in attention/state.py: a past is a state and the *)
(* position at which the next token is read.  k stands for features that are  *)
(* not yet turned: phi(k) with Rf = RoPE and Rg = no_rotation for RoPE after  *)
(* phi, k itself with Rf = Rg = RoPE for RoPE before the kernel.              *)
Section State.
Variables (F : fieldType) (r m : nat) (Rf Rg : rotation F r).

Definition past := (state F r m * int)%type.
Implicit Types (a b c whole : past).

Definition no_text (position : int) : past := ((0, 0), position).

Definition absorb_text a n (k : 'M[F]_(n, r)) (v : 'M[F]_(n, m)) : past :=
  (state_after (turned Rf a.2 k) (turned Rg a.2 k) v a.1.1 a.1.2, a.2 + n%:Z).

Definition shift_past a (by' : int) : past := (shift Rf Rg by' a.1, a.2 + by').

(* b was read from position origin on.                                        *)
Definition join a b (origin : int) : past :=
  let b' := shift_past b (a.2 - origin) in
  ((a.1.1 + b'.1.1, a.1.2 + b'.1.2), b'.2).

Definition remove whole b (origin : int) : past :=
  let start := whole.2 - (b.2 - origin) in
  let b' := shift_past b (start - origin) in
  ((whole.1.1 - b'.1.1, whole.1.2 - b'.1.2), start).

Definition scale a (strength : F) : past :=
  ((strength *: a.1.1, strength *: a.1.2), a.2).

(* Attention over a text that is read where the past ends.                    *)
Definition attend a n (q k : 'M[F]_(n, r)) (v : 'M[F]_(n, m)) P normalise :=
  linear_attention (turned Rf a.2 q) (turned Rf a.2 k) (turned Rg a.2 q)
    (turned Rg a.2 k) v a.1.1 a.1.2 P normalise.

Definition accepts a n (q k : 'M[F]_(n, r)) P normalise :=
  defined (turned Rg a.2 q) (turned Rg a.2 k) a.1.2 P normalise.

(* Shifts compose, and a shift by 0 is none.                                  *)
Theorem shift_past0 a : shift_past a 0 = a.
Proof.
by case: a => [[S z] p]; rewrite /shift_past /shift addr0 !turn0 !mul1mx.
Qed.

Theorem shift_pastD a j k :
  shift_past (shift_past a j) k = shift_past a (j + k).
Proof. by rewrite /shift_past /shift /= addrA [j + k]addrC !turnD !mulmxA. Qed.

(* Absorbing text after text is absorbing both; shifting before is shifting   *)
(* after.                                                                     *)
Theorem absorb_text_cat a M n (kA : 'M_(M, r)) (vA : 'M_(M, m))
    (kB : 'M_(n, r)) (vB : 'M_(n, m)) :
  absorb_text (absorb_text a kA vA) kB vB =
  absorb_text a (col_mx kA kB) (col_mx vA vB).
Proof. by rewrite /absorb_text /= !turned_cat split_state PoszD addrA. Qed.

Theorem absorb_shift a by' n (k : 'M_(n, r)) (v : 'M_(n, m)) :
  absorb_text (shift_past a by') k v = shift_past (absorb_text a k v) by'.
Proof.
rewrite /absorb_text /shift_past /shift /state_after /= !sum_outer !sum_rowT.
by rewrite !turned_add !trmx_mul !trmxK !mulmxDr !mulmxA addrAC.
Qed.

(* The join of two states is the state of the joined text.                    *)
Theorem join_absorb a origin n (k : 'M_(n, r)) (v : 'M_(n, m)) :
  join a (absorb_text (no_text origin) k v) origin = absorb_text a k v.
Proof.
rewrite /join -absorb_shift /shift_past /shift /absorb_text /state_after /=.
by rewrite !mulmx0 !add0r [origin + _]addrC subrK.
Qed.

(* Joining is associative, and no text is neutral.                            *)
Theorem join_assoc a b c (o o' : int) :
  join (join a b o) c o' = join a (join b c o') o.
Proof.
rewrite /join /shift_past /shift /=; move: (a.2 - o) => d.
rewrite [b.2 + d - o']addrAC; move: (b.2 - o') => e.
by rewrite !mulmxDr !mulmxA -!turnD [d + e]addrC !addrA.
Qed.

Theorem join_no_text a o : join a (no_text o) o = a.
Proof.
case: a => [[S z] p]; rewrite /join /shift_past /shift /= !mulmx0 !addr0.
by rewrite addrC subrK.
Qed.

Theorem no_text_join b o : join (no_text o) b o = b.
Proof.
by case: b => [[S z] p]; rewrite /join subrr shift_past0 /= !add0r.
Qed.

(* What was joined can be removed, and what was removed joined again.         *)
Theorem remove_join a b o : remove (join a b o) b o = a.
Proof.
have E : b.2 + (a.2 - o) - (b.2 - o) = a.2.
  by rewrite opprB addrC addrA subrK addrC subrK.
by case: a E => [[S z] p] E; rewrite /remove {}E /= !addrK.
Qed.

Theorem join_remove whole b o : join (remove whole b o) b o = whole.
Proof.
case: whole => [[S z] p]; rewrite /join /remove /= !subrK.
by rewrite -addrA -opprD subrK addrC subrK.
Qed.

(* A past that counts 1 time, and mu times lambda times.                      *)
Theorem scale_one a : scale a 1 = a.
Proof. by case: a => [[S z] p]; rewrite /scale !scale1r. Qed.

Theorem scale_mul a lambda mu :
  scale (scale a lambda) mu = scale a (mu * lambda).
Proof. by rewrite /scale !scalerA. Qed.

(* For a natural number l: the past of a text that was read l times, each     *)
(* time from the same position.                                               *)
Theorem scale_nat p l n (k : 'M_(n, r)) (v : 'M_(n, m)) :
  scale (absorb_text (no_text p) k v) l%:R =
  (iter l (fun s => (absorb_text (s, p) k v).1) (0, 0), p + n%:Z).
Proof.
congr (_, _); elim: l => [|l IH]; first by rewrite /= !scale0r.
rewrite iterS -IH /= /state_after /= !add0r !mulrS !scalerDl !scale1r.
by congr (_, _); rewrite addrC.
Qed.

(* Text read after a shift, from the shifted position, is read as before:     *)
(* the same output, with zero denominators at the same places.                *)
Theorem shift_attend a by' n (q k : 'M_(n, r)) (v : 'M_(n, m)) P normalise :
  attend (shift_past a by') q k v P normalise = attend a q k v P normalise.
Proof.
apply/row_matrixP => t; rewrite !rowK /shift_past /shift /= !turned_add.
by rewrite num_turned den_turned.
Qed.

Theorem shift_accepts a by' n (q k : 'M_(n, r)) P normalise :
  accepts (shift_past a by') q k P normalise = accepts a q k P normalise.
Proof.
rewrite /accepts /defined /shift_past /shift /= !turned_add.
by under eq_forallb do rewrite den_turned.
Qed.

(* Hence what follows the first M tokens of a text may be read from any       *)
(* position, if the state after them is shifted there.                        *)
Theorem shift_split a by' M n (qA kA : 'M_(M, r)) (vA : 'M_(M, m))
    (qB kB : 'M_(n, r)) (vB : 'M_(n, m)) P normalise (H_P : (P <= M)%N) :
  dsubmx (attend a (col_mx qA qB) (col_mx kA kB) (col_mx vA vB) P normalise) =
  attend (shift_past (absorb_text a kA vA) by') qB kB vB 0 normalise.
Proof.
rewrite shift_attend /attend !turned_cat split_invariance //.
by rewrite col_mxKd.
Qed.
End State.
