(* Recurrent layers: a prompt becomes an initial state, exactly.  Mirrors     *)
(* refimpl/model/recurrence.py, which has RWKV; other families will come.     *)
(*                                                                            *)
(*   step x S         one layer reads one token: (what it puts out, S')       *)
(*   scan, final      the outputs and the last state of a layer on a text     *)
(*   model, states    layers one after the other; a state for each of them    *)
(*   run, convert     the model on a text; its states after a prompt          *)
(*   x 0, x 1, ...    the tokens of a text, and n of them: mkseq x n          *)
(*   input x M n      the n tokens after the first M, the prompt              *)
(*   q k v            query, key and value of a token, as rows: any functions *)
(*                    of it                                                   *)
(* Whether a layer reads before or after it writes is its own business.       *)
(* Not modelled: mLSTM (its denominator is max(|z.q|, 1)), RWKV-4 (a running  *)
(* quotient), and the scales of xPos in RetNet.                               *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* ------------------------------------------------------------------------- *)
(* Models of recurrent layers, with tokens and states of any types.           *)
Section Scan.
Variables (X St Y : Type) (step : X -> St -> Y * St).

Fixpoint scan (S : St) (xs : seq X) : seq Y :=
  if xs is x :: xs' then (step x S).1 :: scan (step x S).2 xs' else [::].

Definition final (S : St) (xs : seq X) : St :=
  foldl (fun S x => (step x S).2) S xs.

Lemma final_cat S p xs : final S (p ++ xs) = final (final S p) xs.
Proof. exact: foldl_cat. Qed.

Lemma scan_cat S p xs : scan S (p ++ xs) = scan S p ++ scan (final S p) xs.
Proof. by elim: p S => //= x p IH S; rewrite IH. Qed.

Lemma size_scan S xs : size (scan S xs) = size xs.
Proof. by elim: xs S => //= x xs IH S; rewrite IH. Qed.
End Scan.

(* The architecture and its weights.  Token types may change between layers;  *)
(* what is token-wise (norms, MLPs, gates, residuals) is a layer whose state  *)
(* is of type unit, or a part of [step].                                      *)
Inductive model : Type -> Type -> Type :=
| Stop X : model X X
| Layer X St Y Z (step : X -> St -> Y * St) (next : model Y Z) : model X Z.

Fixpoint states X Z (m : model X Z) : Type :=
  match m with
  | Stop _ => unit
  | @Layer _ St _ _ _ next => (St * states next)%type
  end.

Fixpoint run X Z (m : model X Z) : states m -> seq X -> seq Z :=
  match m with
  | Stop _ => fun _ xs => xs
  | Layer _ _ _ _ step next => fun b xs => run b.2 (scan step b.1 xs)
  end.

(* Run the prompt, keep the last state of each layer.                         *)
Fixpoint convert X Z (m : model X Z) : states m -> seq X -> states m :=
  match m with
  | Stop _ => fun b _ => b
  | Layer _ _ _ _ step next => fun b p =>
      (final step b.1 p, convert b.2 (scan step b.1 p))
  end.

Lemma size_run X Z (m : model X Z) b xs : size (run (m := m) b xs) = size xs.
Proof.
by elim: m b xs => //= {}X St Y {}Z f m IH [S b] xs; rewrite IH size_scan.
Qed.

(* The model on prompt ++ input puts out what it puts out on the prompt, then *)
(* what the converted model puts out on the input alone.                      *)
Theorem run_cat X Z (m : model X Z) (b : states m) prompt input :
  run b (prompt ++ input) = run b prompt ++ run (convert b prompt) input.
Proof.
elim: m b prompt input => //= {}X St Y {}Z f m IH [S b] p xs.
by rewrite scan_cat IH.
Qed.

(* So the converted model, on the input alone, puts out exactly what the      *)
(* model puts out for the input after the prompt.                             *)
Corollary conversion_exact X Z (m : model X Z) (b : states m) prompt input :
  drop (size prompt) (run b (prompt ++ input)) = run (convert b prompt) input.
Proof. by rewrite run_cat drop_size_cat // size_run. Qed.

(* Converting one prompt and then another is converting both at once.         *)
Theorem convert_cat X Z (m : model X Z) (b : states m) p1 p2 :
  convert b (p1 ++ p2) = convert (convert b p1) p2.
Proof.
elim: m b p1 p2 => //= {}X St Y {}Z f m IH [S b] p xs /=.
by rewrite scan_cat final_cat IH.
Qed.

(* Converting no prompt changes nothing.                                      *)
Theorem convert_nil X Z (m : model X Z) (b : states m) : convert b [::] = b.
Proof. by elim: m b => [? []|{}X St Y {}Z f m IH [S b]] //=; rewrite IH. Qed.

(* Generation of k tokens after the text xs; [next] is any rule to choose a   *)
(* token from the last output.                                                *)
Fixpoint generate X Z (m : model X Z) (b : states m) (z0 : Z) (next : Z -> X)
    (k : nat) (xs : seq X) : seq X :=
  if k is k'.+1 then
    generate b z0 next k' (rcons xs (next (last z0 (run b xs))))
  else xs.

(* The converted model writes the same tokens, for every text with at least   *)
(* one token after the prompt.                                                *)
Theorem generation X Z (m : model X Z) (b : states m) z0 next k prompt x xs :
  generate b z0 next k (prompt ++ x :: xs) =
  prompt ++ generate (convert b prompt) z0 next k (x :: xs).
Proof.
elim: k xs => //= k IH xs; rewrite -IH rcons_cat run_cat last_cat /=.
by case: (run _ (x :: xs)) (size_run (convert b prompt) (x :: xs)).
Qed.

(* The layers below are single steps; this is conversion for one of them.     *)
Corollary layer_exact X St Y (step : X -> St -> Y * St) S prompt input :
  drop (size prompt) (scan step S (prompt ++ input)) =
  scan step (final step S prompt) input.
Proof. by rewrite scan_cat drop_size_cat // size_scan. Qed.

(* ------------------------------------------------------------------------- *)
(* Affine transitions S' = a_x S + b_x, on a state in any additive group, and *)
(* with any output, from the states before and after the write.               *)
Section Affine.
Variables (V : zmodType) (X Y : Type) (a : X -> {additive V -> V}) (b : X -> V).
Variable out : X -> V -> V -> Y.

Definition affine_step (x : X) (S : V) : Y * V :=
  let S' := a x S + b x in (out x S S', S').

Variable x : nat -> X.

(* a_(j-1) ... a_i S: what the tokens i <= u < j make of a state.             *)
Definition carry i j S := foldl (fun S u => a (x u) S) S (index_iota i j).

(* The state before token t, explicitly.                                      *)
Definition state_at S t := carry 0 t S + \sum_(s < t) carry s.+1 t (b (x s)).

Lemma carry_recr i j S : (i <= j)%N -> carry i j.+1 S = a (x j) (carry i j S).
Proof.
move=> ij; rewrite /carry /index_iota subSn // -addn1 iotaD foldl_cat /=.
by rewrite subnKC.
Qed.

Lemma carry_nil i S : carry i i S = S.
Proof. by rewrite /carry /index_iota subnn. Qed.

Lemma state_atS S t : state_at S t.+1 = a (x t) (state_at S t) + b (x t).
Proof.
rewrite /state_at big_ord_recr /= carry_recr // carry_nil addrA.
rewrite raddfD raddf_sum.
by congr (_ + _ + _); apply: eq_bigr => s _; rewrite carry_recr.
Qed.

(* The last state of the scan is the explicit sum ...                         *)
Theorem affine_final S n : final affine_step S (mkseq x n) = state_at S n.
Proof.
elim: n => [|n IH]; first by rewrite /state_at carry_nil big_ord0 addr0.
by rewrite /final mkseqS foldl_rcons -/(final _ _ _) IH state_atS.
Qed.

(* ... and its outputs are read from those.                                   *)
Theorem affine_scan S n : scan affine_step S (mkseq x n) =
  mkseq (fun t => out (x t) (state_at S t) (state_at S t.+1)) n.
Proof.
elim: n => // n IH; rewrite !mkseqS -cats1 scan_cat IH affine_final cats1 /=.
by rewrite state_atS.
Qed.
End Affine.

(* Layers with equal steps are equal.                                         *)
Lemma eq_scan X St Y (f g : X -> St -> Y * St) : f =2 g -> scan f =2 scan g.
Proof. by move=> fg S xs; elim: xs S => //= x xs IH S; rewrite fg IH. Qed.

Lemma eq_final X St Y (f g : X -> St -> Y * St) S xs :
  f =2 g -> final f S xs = final g S xs.
Proof.
by move=> fg; elim: xs S => //= x xs IH S; rewrite /final /= fg; exact: IH.
Qed.

Lemma eq_mkseq T (f g : nat -> T) n : f =1 g -> mkseq f n = mkseq g n.
Proof. by move=> fg; apply: eq_map. Qed.

(* ------------------------------------------------------------------------- *)
(* Matrix states: S' = A_t S + k_t^T v_t.                                     *)
Section Matrix.
Variables (K : comRingType) (X : Type) (r m : nat) (A : X -> 'M[K]_r).
Variables (q k : X -> 'rV[K]_r) (v : X -> 'rV[K]_m).

Definition written x : 'M[K]_(r, m) := (k x)^T *m v x.

(* Read after the write, and before it with a bonus U for the token itself.   *)
Definition after_step x S :=
  let S' := A x *m S + written x in (q x *m S', S').

Definition before_step (U : 'M[K]_r) x S :=
  (q x *m (S + U *m written x), A x *m S + written x).

Variable x : nat -> X.

(* A_(j-1) ... A_i                                                            *)
Definition product i j : 'M[K]_r :=
  \big[mulmx/1%:M]_(u <- rev (index_iota i j)) A (x u).

Definition explicit S t : 'M[K]_(r, m) :=
  \sum_(s < t) product s.+1 t *m written (x s) + product 0 t *m S.

Lemma explicitE S t :
  state_at (fun x => [additive of mulmx (A x)]) written x S t = explicit S t.
Proof.
have E i j B : carry (fun x => [additive of mulmx (A x)]) x i j B =
    product i j *m B.
  rewrite /carry /product; elim/last_ind: (index_iota i j) => [|l u IH].
    by rewrite big_nil mul1mx.
  by rewrite foldl_rcons rev_rcons big_cons IH /= mulmxA.
by rewrite /state_at addrC E; congr (_ + _); apply: eq_bigr => s _; rewrite E.
Qed.

(* o_t = sum_(s <= t) q_t (prod_(s < u <= t) A_u) k_s^T v_s                   *)
(*       + q_t (prod_(u <= t) A_u) S                                          *)
Theorem after_scan S n : scan after_step S (mkseq x n) = mkseq (fun t =>
  \sum_(s < t.+1) q (x t) *m product s.+1 t.+1 *m ((k (x s))^T *m v (x s))
  + q (x t) *m product 0 t.+1 *m S) n.
Proof.
have := affine_scan (fun x => [additive of mulmx (A x)]) written
  (fun x _ S' => q x *m S') x S n.
rewrite (@eq_scan _ _ _ _ after_step) // => ->; apply: eq_mkseq => t.
rewrite explicitE mulmxDr mulmx_sumr mulmxA; congr (_ + _).
by apply: eq_bigr => s _; rewrite mulmxA.
Qed.

(* The last state.                                                            *)
Theorem after_final S n : final after_step S (mkseq x n) = explicit S n.
Proof.
by rewrite -explicitE -(affine_final _ _ (fun x _ S' => q x *m S')).
Qed.

(* o_t = sum_(s < t) q_t (prod_(s < u < t) A_u) k_s^T v_s + q_t U k_t^T v_t   *)
(*       + q_t (prod_(u < t) A_u) S                                           *)
Theorem before_scan U S n : scan (before_step U) S (mkseq x n) = mkseq (fun t =>
  \sum_(s < t) q (x t) *m product s.+1 t *m ((k (x s))^T *m v (x s))
  + q (x t) *m U *m ((k (x t))^T *m v (x t)) + q (x t) *m product 0 t *m S) n.
Proof.
have := affine_scan (fun x => [additive of mulmx (A x)]) written
  (fun x S _ => q x *m (S + U *m written x)) x S n.
rewrite (@eq_scan _ _ _ _ (before_step U)) // => ->; apply: eq_mkseq => t.
rewrite explicitE mulmxDr mulmxDr mulmx_sumr addrAC !mulmxA.
by congr (_ + _ + _); apply: eq_bigr => s _; rewrite !mulmxA.
Qed.

(* The last state is the same.                                                *)
Theorem before_final U S n :
  final (before_step U) S (mkseq x n) = explicit S n.
Proof. by rewrite -after_final. Qed.
End Matrix.

(* Transitions that are diagonal commute.                                     *)
Lemma product_diag (K : comRingType) X r (a : X -> 'rV[K]_r) x i j :
  product (fun y => diag_mx (a y)) x i j =
  diag_mx (\row_c \prod_(i <= u < j) a (x u) 0 c).
Proof.
rewrite /product; elim/last_ind: (index_iota i j) => [|l u IH].
  rewrite big_nil -diag_const_mx; congr diag_mx.
  by apply/rowP=> c; rewrite !mxE big_nil.
rewrite rev_rcons big_cons IH mulmx_diag; congr diag_mx; apply/rowP=> c.
by rewrite !mxE -cats1 big_cat big_seq1 mulrC.
Qed.

(* ------------------------------------------------------------------------- *)
(* RetNet: S' = gamma S + k^T v, o = q S', with the rotations of RoPE (or     *)
(* none: no_rotation).  The state is kept in the frame of the last token, so  *)
(* positions need not be known: S' = gamma R_(-1) S + k^T v.  A scale such as *)
(* 1 / sqrt d is part of q.                                                   *)
Section RetNet.
Variables (F : fieldType) (X : Type) (r m : nat) (R : rotation F r) (gamma : F).
Variables (q k : X -> 'rV[F]_r) (v : X -> 'rV[F]_m).

Definition retnet_step x (S : 'M[F]_(r, m)) :=
  let S' := gamma *: (R (- 1) *m S) + (k x)^T *m v x in (q x *m S', S').

Lemma retnet_product (x : nat -> X) i n :
  product (fun=> gamma *: R (- 1)) x i (i + n) = gamma ^+ n *: R (- n%:Z).
Proof.
rewrite /product /index_iota addKn; elim: n => [|n IH].
  by rewrite big_nil expr0 scale1r oppr0 turn0.
rewrite -addn1 iotaD rev_cat big_cons IH -scalemxAl -scalemxAr scalerA -exprS.
by rewrite -turnD addn1 -opprD.
Qed.

(* o_t = sum_(s <= t) gamma^(t-s) (R_t q_t).(R_s k_s) v_s                     *)
(*       + gamma^(t+1) (R_(t+1) q_t) S                                        *)
Theorem retnet_scan (x : nat -> X) S n :
  scan retnet_step S (mkseq x n) = mkseq (fun t =>
    \sum_(s < t.+1) gamma ^+ (t - s) *: (q (x t) *m (R t)^T
      *m (k (x s) *m (R s)^T)^T *m v (x s))
    + gamma ^+ t.+1 *: (q (x t) *m (R t.+1)^T *m S)) n.
Proof.
have -> : scan retnet_step S (mkseq x n) =
    scan (after_step (fun=> gamma *: R (- 1)) q k v) S (mkseq x n).
  by apply: eq_scan => y B; rewrite /after_step -scalemxAl.
rewrite after_scan; apply: eq_mkseq => t; congr (_ + _).
  apply: eq_bigr => s _; have st : (s <= t)%N by rewrite -ltnS.
  rewrite -[X in product _ _ _ X.+1](subnKC st) -addSn retnet_product.
  rewrite -scalemxAr -scalemxAl !trmx_mul trmxK; congr (_ *: _).
  rewrite !mulmxA -[q _ *m _^T *m _]mulmxA turnT -turnD -subzn // opprB addrC.
  by [].
have := retnet_product x 0 t.+1; rewrite add0n => ->.
by rewrite -scalemxAr -scalemxAl turnT.
Qed.
End RetNet.

(* ------------------------------------------------------------------------- *)
(* Gates from the token.                                                      *)
Section Gated.
Variables (K : comRingType) (X : Type) (r m : nat).
Variables (q k : X -> 'rV[K]_r) (v : X -> 'rV[K]_m).
Implicit Type S : 'M[K]_(r, m).

(* GLA: S' = Diag(a_t) S + k^T v, o = q S'.  (Mamba-2: all entries of a_t are *)
(* one number.)                                                               *)
Definition gla_step (a : X -> 'rV[K]_r) x S :=
  let S' := diag_mx (a x) *m S + (k x)^T *m v x in (q x *m S', S').

(* Its scan is the explicit sum, with entry-by-entry products of the gates.   *)
Theorem gla_scan (a : X -> 'rV[K]_r) x S n :
  let decay i j := diag_mx (\row_c \prod_(i <= u < j) a (x u) 0 c) in
  scan (gla_step a) S (mkseq x n) = mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m decay s.+1 t.+1 *m ((k (x s))^T *m v (x s))
    + q (x t) *m decay 0%N t.+1 *m S) n.
Proof.
rewrite /= (after_scan (fun y => diag_mx (a y))); apply: eq_mkseq => t.
by congr (_ + _); first apply: eq_bigr => s _; rewrite (product_diag a).
Qed.

(* RWKV-5 and -6 (w from the token): o = q (S + Diag(u) k^T v), read before   *)
(* the write S' = Diag(w) S + k^T v.                                          *)
Definition rwkv_step (w : X -> 'rV[K]_r) (u : 'rV[K]_r) x S :=
  (q x *m (S + diag_mx u *m ((k x)^T *m v x)),
   diag_mx (w x) *m S + (k x)^T *m v x).

(* Its scan is the explicit sum over s < t, the bonus, and the old state.     *)
Theorem rwkv_scan (w : X -> 'rV[K]_r) u x S n :
  let decay i j := diag_mx (\row_c \prod_(i <= l < j) w (x l) 0 c) in
  scan (rwkv_step w u) S (mkseq x n) = mkseq (fun t =>
    \sum_(s < t) q (x t) *m decay s.+1 t *m ((k (x s))^T *m v (x s))
    + q (x t) *m diag_mx u *m ((k (x t))^T *m v (x t))
    + q (x t) *m decay 0%N t *m S) n.
Proof.
rewrite /= (before_scan (fun y => diag_mx (w y))); apply: eq_mkseq => t.
by congr (_ + _ + _); first apply: eq_bigr => s _; rewrite (product_diag w).
Qed.

(* RWKV-7: S' = Diag(w) S + b^T (a S) + k^T v, o = q S'.                      *)
Definition rwkv7_step (w a b : X -> 'rV[K]_r) x S :=
  let S' := diag_mx (w x) *m S + (b x)^T *m (a x *m S) + (k x)^T *m v x in
  (q x *m S', S').

(* Its scan is the explicit sum with A = Diag(w) + b^T a.                     *)
Theorem rwkv7_scan (w a b : X -> 'rV[K]_r) x S n :
  let A y := diag_mx (w y) + (b y)^T *m a y in
  scan (rwkv7_step w a b) S (mkseq x n) = mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m product A x s.+1 t.+1
      *m ((k (x s))^T *m v (x s))
    + q (x t) *m product A x 0 t.+1 *m S) n.
Proof.
move=> A; rewrite -after_scan; apply: eq_scan => y B.
by rewrite /rwkv7_step /after_step mulmxDl mulmxA.
Qed.

(* Gated DeltaNet: S0 = alpha S, S' = S0 + beta k^T (v - k S0), o = q S'.     *)
Definition delta_step (alpha beta : X -> K) x S :=
  let S0 := alpha x *: S in
  let S' := S0 + beta x *: ((k x)^T *m (v x - k x *m S0)) in (q x *m S', S').

Lemma delta_stepE (alpha beta : X -> K) :
  let A y := alpha y *: (1%:M - beta y *: ((k y)^T *m k y)) in
  delta_step alpha beta =2 after_step A q (fun y => beta y *: k y) v.
Proof.
move=> A y B; rewrite /delta_step /after_step /written /A.
have -> // : alpha y *: B + beta y *: ((k y)^T *m (v y - k y *m (alpha y *: B)))
  = alpha y *: (1%:M - beta y *: ((k y)^T *m k y)) *m B
    + (beta y *: k y)^T *m v y.
rewrite [(beta y *: k y)^T]linearZ /= -!scalemxAl mulmxBl mul1mx mulmxBr.
rewrite !scalerBr -scalemxAl -!scalemxAr !scalerA mulmxA [beta y * _]mulrC.
by rewrite addrA addrAC.
Qed.

(* Its scan is the explicit sum with A = alpha (1 - beta k^T k).              *)
Theorem delta_scan (alpha beta : X -> K) x S n :
  let A y := alpha y *: (1%:M - beta y *: ((k y)^T *m k y)) in
  scan (delta_step alpha beta) S (mkseq x n) = mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m product A x s.+1 t.+1
      *m (beta (x s) *: ((k (x s))^T *m v (x s)))
    + q (x t) *m product A x 0 t.+1 *m S) n.
Proof.
move=> A; rewrite (eq_scan (delta_stepE alpha beta)) after_scan.
apply: eq_mkseq => t; congr (_ + _).
by apply: eq_bigr => s _; rewrite linearZ /= -scalemxAl.
Qed.

Lemma delta_final (alpha beta : X -> K) x S n :
  let A y := alpha y *: (1%:M - beta y *: ((k y)^T *m k y)) in
  final (delta_step alpha beta) S (mkseq x n) =
  \sum_(s < n) product A x s.+1 n *m (beta (x s) *: ((k (x s))^T *m v (x s)))
  + product A x 0 n *m S.
Proof.
move=> A; rewrite (eq_final _ _ (delta_stepE alpha beta)) after_final.
congr (_ + _); apply: eq_bigr => s _.
by rewrite /written linearZ /= -scalemxAl.
Qed.

(* DeltaNet: S' = S + beta k^T (v - k S), o = q S'.                           *)
Definition deltanet_step (beta : X -> K) x S :=
  let S' := S + beta x *: ((k x)^T *m (v x - k x *m S)) in (q x *m S', S').

Lemma deltanet_stepE (beta : X -> K) :
  deltanet_step beta =2 delta_step (fun=> 1) beta.
Proof. by move=> y B; rewrite /delta_step scale1r. Qed.

Lemma product_scale1 (A : X -> 'M[K]_r) x i j :
  product (fun y => 1 *: A y) x i j = product A x i j.
Proof. by apply: eq_bigr => u _; rewrite scale1r. Qed.

(* Its scan is the explicit sum with A = 1 - beta k^T k.                      *)
Theorem deltanet_scan (beta : X -> K) x S n :
  let A y := 1%:M - beta y *: ((k y)^T *m k y) in
  scan (deltanet_step beta) S (mkseq x n) = mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m product A x s.+1 t.+1
      *m (beta (x s) *: ((k (x s))^T *m v (x s)))
    + q (x t) *m product A x 0 t.+1 *m S) n.
Proof.
move=> A; rewrite (eq_scan (deltanet_stepE beta)) delta_scan.
apply: eq_mkseq => t; rewrite (product_scale1 A); congr (_ + _).
by apply: eq_bigr => s _; rewrite (product_scale1 A).
Qed.

Lemma deltanet_final (beta : X -> K) x S n :
  let A y := 1%:M - beta y *: ((k y)^T *m k y) in
  final (deltanet_step beta) S (mkseq x n) =
  \sum_(s < n) product A x s.+1 n *m (beta (x s) *: ((k (x s))^T *m v (x s)))
  + product A x 0 n *m S.
Proof.
move=> A; rewrite (eq_final _ _ (deltanet_stepE beta)) delta_final.
rewrite (product_scale1 A); congr (_ + _).
by apply: eq_bigr => s _; rewrite (product_scale1 A).
Qed.
End Gated.

(* Conversion of the layers above.  On the left is no recurrence: the outputs *)
(* of the explicit sum over prompt and input, x 0, ..., x (M + n - 1), of     *)
(* which those of the prompt, the first M, are dropped.  On the right the     *)
(* layer scans the input alone, x M, ..., from the state that the prompt      *)
(* left, where that state is the explicit one.                                *)
Section Split.
Variables (X : Type) (x : nat -> X) (M n : nat).

(* The input: the n tokens after the prompt.                                  *)
Definition input := mkseq (fun t => x (M + t)) n.

Lemma split_text : mkseq x (M + n) = mkseq x M ++ input.
Proof.
rewrite /mkseq iotaD map_cat; congr (_ ++ _).
by rewrite add0n -[M in iota M n]addn0 iotaDl -map_comp.
Qed.

Lemma exactE St Y (step : X -> St -> Y * St) S o :
  scan step S (mkseq x (M + n)) = mkseq o (M + n) ->
  drop M (mkseq o (M + n)) = scan step (final step S (mkseq x M)) input.
Proof.
move=> <-; rewrite split_text -{1}(size_mkseq x M); exact: layer_exact.
Qed.
End Split.

Section Exact.
Variables (F : fieldType) (X : Type) (r m : nat) (R : rotation F r) (gamma : F).
Variables (q k : X -> 'rV[F]_r) (v : X -> 'rV[F]_m) (w a b : X -> 'rV[F]_r).
Variables (u : 'rV[F]_r) (alpha beta : X -> F) (x : nat -> X) (M n : nat).
Variable S : 'M[F]_(r, m).

(* RetNet: the sums with gamma^(t-s), less the prompt's, are this scan.       *)
Corollary retnet_exact :
  drop M (mkseq (fun t =>
    \sum_(s < t.+1) gamma ^+ (t - s) *: (q (x t) *m (R t)^T
      *m (k (x s) *m (R s)^T)^T *m v (x s))
    + gamma ^+ t.+1 *: (q (x t) *m (R t.+1)^T *m S)) (M + n)) =
  scan (retnet_step R gamma q k v)
    (\sum_(s < M) gamma ^+ (M - s.+1) *: (R (- (M - s.+1)%:Z)
       *m ((k (x s))^T *m v (x s)))
     + gamma ^+ M *: (R (- M%:Z) *m S)) (input x M n).
Proof.
rewrite (exactE (retnet_scan R gamma q k v x S (M + n))); congr scan.
rewrite (eq_final (g := after_step (fun=> gamma *: R (- 1)) q k v)); last first.
  by move=> y B; rewrite /after_step -scalemxAl.
rewrite after_final /explicit; congr (_ + _).
  apply: eq_bigr => s _; have := retnet_product R gamma x s.+1 (M - s.+1).
  by rewrite subnKC // => ->; rewrite -scalemxAl.
have := retnet_product R gamma x 0 M; rewrite add0n => ->.
by rewrite -scalemxAl.
Qed.

(* GLA: the gated sums, less the prompt's, are this scan.                     *)
Corollary gla_exact :
  let decay i j := diag_mx (\row_c \prod_(i <= l < j) a (x l) 0 c) in
  drop M (mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m decay s.+1 t.+1 *m ((k (x s))^T *m v (x s))
    + q (x t) *m decay 0%N t.+1 *m S) (M + n)) =
  scan (gla_step q k v a)
    (\sum_(s < M) decay s.+1 M *m ((k (x s))^T *m v (x s)) + decay 0%N M *m S)
    (input x M n).
Proof.
move=> decay; rewrite (exactE (gla_scan q k v a x S (M + n))); congr scan.
rewrite (after_final (fun y => diag_mx (a y))) /explicit (product_diag a).
by congr (_ + _); apply: eq_bigr => s _; rewrite (product_diag a).
Qed.

(* RWKV-5 and -6: the gated sums and the bonus, less the prompt's.            *)
Corollary rwkv_exact :
  let decay i j := diag_mx (\row_c \prod_(i <= l < j) w (x l) 0 c) in
  drop M (mkseq (fun t =>
    \sum_(s < t) q (x t) *m decay s.+1 t *m ((k (x s))^T *m v (x s))
    + q (x t) *m diag_mx u *m ((k (x t))^T *m v (x t))
    + q (x t) *m decay 0%N t *m S) (M + n)) =
  scan (rwkv_step q k v w u)
    (\sum_(s < M) decay s.+1 M *m ((k (x s))^T *m v (x s)) + decay 0%N M *m S)
    (input x M n).
Proof.
move=> decay; rewrite (exactE (rwkv_scan q k v w u x S (M + n))); congr scan.
rewrite (before_final (fun y => diag_mx (w y)) q k v x (diag_mx u)).
rewrite /explicit (product_diag w).
by congr (_ + _); apply: eq_bigr => s _; rewrite (product_diag w).
Qed.

(* RWKV-7: the sums with A = Diag(w) + b^T a, less the prompt's.              *)
Corollary rwkv7_exact :
  let A y := diag_mx (w y) + (b y)^T *m a y in
  drop M (mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m product A x s.+1 t.+1
      *m ((k (x s))^T *m v (x s))
    + q (x t) *m product A x 0 t.+1 *m S) (M + n)) =
  scan (rwkv7_step q k v w a b)
    (\sum_(s < M) product A x s.+1 M *m ((k (x s))^T *m v (x s))
     + product A x 0 M *m S) (input x M n).
Proof.
move=> A; rewrite (exactE (rwkv7_scan q k v w a b x S (M + n))); congr scan.
rewrite -[RHS]/(explicit A k v x S M) -(after_final A q).
by apply: eq_final => y B; rewrite /rwkv7_step /after_step mulmxDl mulmxA.
Qed.

(* Gated DeltaNet: those with A = alpha (1 - beta k^T k).                     *)
Corollary delta_exact :
  let A y := alpha y *: (1%:M - beta y *: ((k y)^T *m k y)) in
  drop M (mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m product A x s.+1 t.+1
      *m (beta (x s) *: ((k (x s))^T *m v (x s)))
    + q (x t) *m product A x 0 t.+1 *m S) (M + n)) =
  scan (delta_step q k v alpha beta)
    (\sum_(s < M) product A x s.+1 M *m (beta (x s) *: ((k (x s))^T *m v (x s)))
     + product A x 0 M *m S) (input x M n).
Proof.
move=> A; rewrite (exactE (delta_scan q k v alpha beta x S (M + n))).
by rewrite delta_final.
Qed.

(* DeltaNet: those with A = 1 - beta k^T k.                                   *)
Corollary deltanet_exact :
  let A y := 1%:M - beta y *: ((k y)^T *m k y) in
  drop M (mkseq (fun t =>
    \sum_(s < t.+1) q (x t) *m product A x s.+1 t.+1
      *m (beta (x s) *: ((k (x s))^T *m v (x s)))
    + q (x t) *m product A x 0 t.+1 *m S) (M + n)) =
  scan (deltanet_step q k v beta)
    (\sum_(s < M) product A x s.+1 M *m (beta (x s) *: ((k (x s))^T *m v (x s)))
     + product A x 0 M *m S) (input x M n).
Proof.
move=> A; rewrite (exactE (deltanet_scan q k v beta x S (M + n))).
by rewrite deltanet_final.
Qed.
End Exact.

(* ------------------------------------------------------------------------- *)
(* State-space models behind a short convolution.  The extra state is the     *)
(* last [taps] tokens, newest first; transition, input and output are any     *)
(* functions of the window of taps + 1 tokens (and the output of the token).  *)
Section ShortConvolution.
Variables (V : zmodType) (X Y : Type) (taps : nat).
Variables (a : seq X -> {additive V -> V}) (b : seq X -> V).
Variable out : X -> seq X -> V -> Y.

Definition ssm_step x (st : seq X * V) :=
  let w := take taps.+1 (x :: st.1) in
  let h := a w st.2 + b w in (out x w h, (take taps w, h)).

Variables (x : nat -> X) (w0 : seq X) (h0 : V).
Hypothesis H_w0 : (size w0 <= taps)%N.

(* The window of token t: itself and those before, then what came in.         *)
Definition window t := take taps.+1 (rev (mkseq x t.+1) ++ w0).

Lemma take_window t :
  x t :: take taps (take taps (rev (mkseq x t) ++ w0)) = window t.
Proof. by rewrite /window /= take_take // mkseqS rev_rcons. Qed.

(* After n tokens: the last taps, and the explicit affine state.              *)
Theorem ssm_final n : final ssm_step (w0, h0) (mkseq x n) =
  (take taps (rev (mkseq x n) ++ w0), state_at a b window h0 n).
Proof.
elim: n => [|n IH].
  by rewrite /state_at carry_nil big_ord0 addr0 /= take_oversize.
rewrite /final mkseqS foldl_rcons -/(final _ _ _) IH /ssm_step /= take_window.
by rewrite state_atS /window take_take // mkseqS.
Qed.

(* The outputs are read from the explicit affine states along the windows.    *)
Theorem ssm_scan n : scan ssm_step (w0, h0) (mkseq x n) =
  mkseq (fun t => out (x t) (window t) (state_at a b window h0 t.+1)) n.
Proof.
elim: n => // n IH; rewrite !mkseqS -cats1 scan_cat IH ssm_final cats1 /=.
by rewrite take_window state_atS.
Qed.

(* Conversion: what is read from the explicit states along prompt and input,  *)
(* less that of the prompt, is the scan of the input from the last taps of    *)
(* the prompt and its explicit state.                                         *)
Corollary ssm_exact M n :
  drop M (mkseq (fun t =>
    out (x t) (window t) (state_at a b window h0 t.+1)) (M + n)) =
  scan ssm_step (take taps (rev (mkseq x M) ++ w0), state_at a b window h0 M)
    (input x M n).
Proof. by rewrite (exactE (ssm_scan (M + n))) ssm_final. Qed.
End ShortConvolution.

(* The diagonal case (Mamba, S4D, H3): h' = a_t h + b_t entry by entry, with  *)
(* a_t = exp(Delta_t A) or anything else.                                     *)
Section Diagonal.
Variables (K : comRingType) (c d : nat).
Implicit Types g h : 'M[K]_(c, d).

Definition hadamard g h := \matrix_(i, j) (g i j * h i j).

Lemma hadamard_additive g : additive (hadamard g).
Proof. by move=> h h'; apply/matrixP=> i j; rewrite !mxE mulrBr. Qed.
Canonical hadamard_add g := Additive (hadamard_additive g).

(* The explicit state, entry by entry.                                        *)
Theorem diagonal_state X (a b : X -> 'M[K]_(c, d)) x h t i j :
  state_at (fun y => [additive of hadamard (a y)]) b x h t i j =
  \sum_(s < t) (\prod_(s.+1 <= u < t) a (x u) i j) * b (x s) i j
  + (\prod_(0 <= u < t) a (x u) i j) * h i j.
Proof.
have E l l' g : carry (fun y => [additive of hadamard (a y)]) x l l' g i j =
    (\prod_(l <= u < l') a (x u) i j) * g i j.
  rewrite /carry; elim/last_ind: (index_iota l l') => [|us u IH].
    by rewrite big_nil mul1r.
  rewrite foldl_rcons mxE IH -cats1 big_cat big_seq1 mulrA.
  by rewrite [a _ _ _ * _]mulrC.
rewrite /state_at mxE summxE E addrC; congr (_ + _).
by apply: eq_bigr => s _; rewrite E.
Qed.
End Diagonal.

(* ------------------------------------------------------------------------- *)
(* Softmax attention, or attention with any kernel sim: the state is its KV   *)
(* cache.  Numerator and denominator are put out as a pair, so that whatever  *)
(* divides them (MathComp's x / 0 is 0; the program refuses) divides alike.   *)
Section Cache.
Variables (F : fieldType) (X Q K : Type) (m : nat) (sim : Q -> K -> F).
Variables (q : X -> Q) (k : X -> K) (v : X -> 'rV[F]_m).

Definition attend (y : Q) (cache : seq (K * 'rV[F]_m)) : 'rV[F]_m * F :=
  (\sum_(kv <- cache) sim y kv.1 *: kv.2, \sum_(kv <- cache) sim y kv.1).

Definition cache_step x cache :=
  let cache' := rcons cache (k x, v x) in (attend (q x) cache', cache').

Variable x : nat -> X.

(* The cache after n tokens is what was there and their keys and values.      *)
Theorem cache_final cache n : final cache_step cache (mkseq x n) =
  cache ++ mkseq (fun s => (k (x s), v (x s))) n.
Proof.
elim: n => [|n IH]; first by rewrite cats0.
by rewrite /final !mkseqS foldl_rcons -/(final _ _ _) IH -rcons_cat.
Qed.

(* o_t = (sum_(cache) sim(q_t, k) v + sum_(s <= t) sim(q_t, k_s) v_s,         *)
(*        sum_(cache) sim(q_t, k)   + sum_(s <= t) sim(q_t, k_s))             *)
Theorem cache_scan cache n : scan cache_step cache (mkseq x n) =
  mkseq (fun t => ((attend (q (x t)) cache).1
      + \sum_(s < t.+1) sim (q (x t)) (k (x s)) *: v (x s),
    (attend (q (x t)) cache).2 + \sum_(s < t.+1) sim (q (x t)) (k (x s)))) n.
Proof.
elim: n => // n IH; rewrite !mkseqS -cats1 scan_cat IH cache_final cats1 /=.
rewrite rcons_cat -(mkseqS (fun s => (k (x s), v (x s)))) /attend.
by rewrite !big_cat /= !big_map -[iota 0 n.+1]/(index_iota 0 n.+1) !big_mkord.
Qed.

(* Conversion: the sums over the old cache, prompt and input, less the        *)
(* outputs of the prompt, are the scan of the input from the cache to which   *)
(* the keys and values of the prompt were added.                              *)
Corollary cache_exact cache M n :
  drop M (mkseq (fun t => ((attend (q (x t)) cache).1
      + \sum_(s < t.+1) sim (q (x t)) (k (x s)) *: v (x s),
    (attend (q (x t)) cache).2 + \sum_(s < t.+1) sim (q (x t)) (k (x s))))
    (M + n)) =
  scan cache_step (cache ++ mkseq (fun s => (k (x s), v (x s))) M)
    (input x M n).
Proof. by rewrite (exactE (cache_scan cache (M + n))) cache_final. Qed.
End Cache.

(* ------------------------------------------------------------------------- *)
(* Linear attention, causal: the program's recurrent form.  f and g are the   *)
(* features of numerator and denominator; with positions, they are part of    *)
(* the token.                                                                 *)
Section LinearAttention.
Variables (F : fieldType) (X : Type) (r m : nat).
Variables (fq fk gq gk : X -> 'rV[F]_r) (v : X -> 'rV[F]_m).

Definition linear_step x (b : state F r m) : 'rV[F]_m * F * state F r m :=
  let b' := (b.1 + (fk x)^T *m v x, b.2 + (gk x)^T) in
  ((fq x *m b'.1, (gq x *m b'.2) 0 0), b').

Variables (x : nat -> X) (n : nat).

(* The first n tokens' rows.                                                  *)
Definition text d (f : X -> 'rV[F]_d) : 'M[F]_(n, d) := \matrix_(t < n) f (x t).
End LinearAttention.

Section LinearAttentionProof.
Variables (F : fieldType) (X : Type) (r m : nat).
Variables (fq fk gq gk : X -> 'rV[F]_r) (v : X -> 'rV[F]_m) (x : nat -> X).
Variables (S : 'M[F]_(r, m)) (z : 'cV[F]_r).
Local Notation step := (linear_step fq fk gq gk v).

Lemma linear_final n : final step (S, z) (mkseq x n) =
  (S + \sum_(s < n) (fk (x s))^T *m v (x s), z + \sum_(s < n) (gk (x s))^T).
Proof.
elim: n => [|n IH]; first by rewrite !big_ord0 !addr0.
by rewrite /final mkseqS foldl_rcons -/(final _ _ _) IH !big_ord_recr /= !addrA.
Qed.

(* Its scan is the definition of linear_attention.v: numerators and           *)
(* denominators, and the state after the text.                                *)
Theorem linear_scan n :
  (scan step (S, z) (mkseq x n), final step (S, z) (mkseq x n)) =
  by_sum (text x n fq) (text x n fk) (text x n gq) (text x n gk) (text x n v)
    S z 0.
Proof.
rewrite linear_final /by_sum /state_after.
congr (_, (_ + _, _ + _)); last 2 first.
- by apply: eq_bigr => s _; rewrite !rowK.
- by apply: eq_bigr => s _; rewrite rowK.
have -> : scan step (S, z) (mkseq x n) = mkseq (fun t =>
    (fq (x t) *m (S + \sum_(s < t.+1) (fk (x s))^T *m v (x s)),
     (gq (x t) *m (z + \sum_(s < t.+1) (gk (x s))^T)) 0 0)) n.
  elim: n => // n IH; rewrite !mkseqS -cats1 scan_cat IH linear_final cats1 /=.
  by rewrite !big_ord_recr /= !addrA.
rewrite /mkseq -val_enum_ord -map_comp; apply: eq_map => t /=.
have sees (V : zmodType) (f : nat -> V) :
    \sum_(s < t.+1) f s = \sum_(s < n | seen 0 t s) f s.
  rewrite (big_ord_widen_cond n xpredT f (ltn_ord t)).
  by apply: eq_bigl => s; rewrite /seen maxn0.
rewrite /num /den /S_at /z_at !rowK (sees _ (fun s => (fk (x s))^T *m v (x s))).
rewrite (sees _ (fun s => (gk (x s))^T)).
congr pair; last congr (fun_of_matrix _ 0 0); congr (_ *m (_ + _));
  by apply: eq_bigr => s _; rewrite !rowK.
Qed.

(* Hence the divided outputs are the rows of linear_attention, and no         *)
(* denominator is 0 exactly if the definition is defined.                     *)
Corollary linear_scan_output n normalise :
  let attention := linear_attention (text x n fq) (text x n fk) (text x n gq)
    (text x n gk) (text x n v) S z 0 normalise in
  output normalise (scan step (S, z) (mkseq x n)) = rows attention /\
  accepted normalise (scan step (S, z) (mkseq x n)) =
  defined (text x n gq) (text x n gk) z 0 normalise.
Proof.
have /(congr1 fst) /= -> := linear_scan n.
by rewrite output_by_sum accepted_by_sum.
Qed.

(* Conversion: the numerators and denominators of the definition on prompt    *)
(* and input, less those of the prompt, are the scan of the input from the    *)
(* state after the prompt.                                                    *)
Corollary linear_exact M n :
  let f d := text (d := d) x (M + n) in
  drop M (by_sum (f _ fq) (f _ fk) (f _ gq) (f _ gk) (f _ v) S z 0).1 =
  scan step (S + \sum_(s < M) (fk (x s))^T *m v (x s),
             z + \sum_(s < M) (gk (x s))^T) (input x M n).
Proof.
move=> f; rewrite -linear_scan -linear_final split_text.
by rewrite -{1}(size_mkseq x M) layer_exact.
Qed.
End LinearAttentionProof.

(* ------------------------------------------------------------------------- *)
(* Under decay no constant additive bias does what a prompt does, although    *)
(* the initial state does (retnet_exact).                                     *)
Section NoConstantBias.
Variables (F : fieldType) (r m : nat) (gamma : F).

(* A token is its own query, key and value.                                   *)
Definition qkv := ('rV[F]_r * 'rV[F]_r * 'rV[F]_m)%type.

Definition decay_step : qkv -> 'M[F]_(r, m) -> 'rV[F]_m * 'M[F]_(r, m) :=
  retnet_step (no_rotation F r) gamma (fun x => x.1.1) (fun x => x.1.2) snd.

(* The same layer with a bias b that is added to the state whenever it is     *)
(* read.                                                                      *)
Definition biased_step (b : 'M[F]_(r, m)) (x : qkv) S :=
  let: (o, S') := decay_step x S in (o + x.1.1 *m b, S').

(* Whatever the prompt, if it leaves a state other than 0: for every b there  *)
(* is an input of two tokens on which the biased layer differs.               *)
Theorem no_constant_bias prompt b (H_0 : gamma != 0) (H_1 : gamma != 1)
    (H_prompt : final decay_step 0 prompt != 0) :
  exists2 input, size input = 2%N &
    drop (size prompt) (scan decay_step 0 (prompt ++ input)) !=
    scan (biased_step b) 0 input.
Proof.
set C := final _ _ _ in H_prompt.
have [i Ci] : exists i, row i C != 0.
  apply/existsP; rewrite -negb_forall; apply: contra H_prompt => /forallP C0.
  by apply/eqP/row_matrixP=> i; rewrite row0; apply/eqP/C0.
pose token : qkv := (delta_mx 0 i, 0, 0); exists [:: token; token] => //.
have two St Y (f : qkv -> St -> Y * St) B : scan f B [:: token; token] =
  [:: (f token B).1; (f token (f token B).2).1] by [].
have D B : decay_step token B = (gamma *: row i B, gamma *: B).
  rewrite /decay_step /retnet_step /= mul1mx trmx0 mul0mx addr0 -scalemxAr.
  by rewrite -rowE.
have E B : biased_step b token B = (gamma *: row i B + row i b, gamma *: B).
  by rewrite /biased_step D -rowE.
rewrite layer_exact -/C !two !D !E /= scaler0 row0 scaler0 add0r.
apply: contra Ci => /eqP[<- /eqP]; rewrite linearZ /= -subr_eq0 -scalerBr.
rewrite -{2}[row i C]scale1r -scalerBl !scaler_eq0 (negPf H_0) subr_eq0.
by rewrite (negPf H_1).
Qed.
End NoConstantBias.

(* The hypotheses hold, for one, over the rationals with gamma = 1/2 and the  *)
(* prompt of one token whose query, key and value are 1.                      *)
Example no_constant_bias_half (b : 'M[rat]_1) :
  let prompt := [:: (1%:M, 1%:M, 1%:M)] : seq (qkv rat_fieldType 1 1) in
  exists2 input, size input = 2%N &
    drop (size prompt) (scan (decay_step 2%:R^-1) 0 (prompt ++ input)) !=
    scan (biased_step 2%:R^-1 b) 0 input.
Proof.
move=> prompt; apply: (@no_constant_bias _ _ _ _ prompt b) => //.
rewrite /decay_step /retnet_step /= mulmx0 scaler0 add0r trmx1 mulmx1.
exact: matrix_nonzero1.
Qed.

(* ------------------------------------------------------------------------- *)
(* Conversion as a parallel scan.  A text acts on the state as one affine map *)
(* (A, B): S -> A S + B.                                                      *)
Section Tree.
Variables (K : comRingType) (X : Type) (r m : nat).
Variables (A : X -> 'M[K]_r) (B : X -> 'M[K]_(r, m)).

Definition affine := ('M[K]_r * 'M[K]_(r, m))%type.
Definition apply (f : affine) S := f.1 *m S + f.2.
Definition no_change : affine := (1%:M, 0).

(* First f, then g.                                                           *)
Definition compose (f g : affine) : affine := (g.1 *m f.1, g.1 *m f.2 + g.2).

(* Composed maps act one after the other, ...                                 *)
Theorem compose_apply f g S : apply (compose f g) S = apply g (apply f S).
Proof. by rewrite /apply /= mulmxDr !mulmxA addrA. Qed.

(* ... they compose associatively, ...                                        *)
Theorem compose_assoc : associative compose.
Proof. by move=> f g h; rewrite /compose /= mulmxDr !mulmxA addrA. Qed.

(* ... and no text changes nothing.                                           *)
Theorem compose_1 : left_id no_change compose /\ right_id no_change compose.
Proof.
by split=> -[f f']; rewrite /compose /= ?mulmx1 ?mul1mx ?mulmx0 ?add0r ?addr0.
Qed.

(* A chunk, token by token.                                                   *)
Definition chunk (xs : seq X) : affine :=
  foldl (fun f x => compose f (A x, B x)) no_change xs.

Lemma chunk_cat xs ys : chunk (xs ++ ys) = compose (chunk xs) (chunk ys).
Proof.
rewrite /chunk foldl_cat; elim/last_ind: ys => [|ys y IH].
  by rewrite /= compose_1.2.
by rewrite !foldl_rcons IH compose_assoc.
Qed.

(* Chunks in order, in any bracketing.                                        *)
Inductive tree := Chunk of seq X | Node of tree & tree.

Fixpoint whole t := if t is Node l l' then whole l ++ whole l' else
  if t is Chunk xs then xs else [::].

Fixpoint reduce t : affine :=
  match t with
  | Chunk xs => chunk xs
  | Node l l' => compose (reduce l) (reduce l')
  end.

Lemma reduceE t : reduce t = chunk (whole t).
Proof. by elim: t => //= l -> l' ->; rewrite chunk_cat. Qed.

(* So any bracketing gives the same map ...                                   *)
Theorem reduce_any t t' (H_text : whole t = whole t') : reduce t = reduce t'.
Proof. by rewrite !reduceE H_text. Qed.

(* ... which carries every state to the state after the whole text.           *)
Theorem reduce_final Y (out : X -> 'M[K]_(r, m) -> 'M[K]_(r, m) -> Y) t S :
  apply (reduce t) S =
  final (affine_step (fun x => [additive of mulmx (A x)]) B out) S (whole t).
Proof.
rewrite reduceE; elim/last_ind: (whole t) => [|xs x IH].
  by rewrite /apply /= mul1mx addr0.
rewrite /chunk /final !foldl_rcons -/(chunk _) -/(final _ _ _).
by rewrite compose_apply IH.
Qed.
End Tree.
