(* ICLCA: a prompt becomes biases of the attention, exactly.  Mirrors         *)
(* refimpl/prompt/conversion.py and refimpl/model/transformer.py.             *)
(*                                                                            *)
(*   X, prompt        texts: a token is a row of any width                    *)
(*   col_mx prompt X  prompt followed by X                                    *)
(*   b                biases: for every layer and group of heads (b_KV, b_D)  *)
(*   p                the position at which the next token is read            *)
(*   P                the mask, as in linear_attention.v                      *)
(*   M                the length of the prompt                                *)
(*   lambda           strength, how often the prompt counts for the input     *)
(*   run              transformer(model, text)[0], without embed and unembed  *)
(*   absorb           transformer(model, text)[1], the states after the text  *)
(*   shift_all        turned(model, by)                                       *)
(*   convert          convert(model, prompt); P = 0 is mask="causal", P = M   *)
(*                    is mask="full"; absorb alone is restart=False           *)
(*   convert_strength, unconvert                                              *)
(*                    convert(..., strength=lambda), unconvert(...)           *)
(* Positions that are part of the token (a table of absolute positions, RoPE  *)
(* before the kernel with phi other than the identity) are columns of X that  *)
(* every layer passes on, with R_num and R_den that do not turn; conversion   *)
(* is then exact for the input that carries the positions M, M+1, ...         *)
(* MathComp's x / 0 is 0: theorems whose names contain [defined] say that     *)
(* both sides meet zero denominators, where the program refuses, together.    *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section Conversion.
Variable F : fieldType.

(* A layer: attention in heads, of which those of one group share keys and    *)
(* values, then any token-wise function of the token and of what its heads    *)
(* put out (one row for each): W_O, residual, norm, MLP, gates, ...  The maps *)
(* phi_q (W_Q x), phi_k (W_K x), W_V x are any functions of a token.          *)
(*   no positions              R_num and R_den do not turn                    *)
(*   RoPE after phi            R_den does not turn                            *)
(*   RoPE before the kernel    R_num = R_den, phi = identity                  *)
Record layer d d' := Layer {
  heads : nat;
  groups : nat;
  r : nat;
  m : nat;
  group : 'I_heads -> 'I_groups;
  phi_q : 'I_heads -> 'rV[F]_d -> 'rV[F]_r;
  phi_k : 'I_groups -> 'rV[F]_d -> 'rV[F]_r;
  value : 'I_groups -> 'rV[F]_d -> 'rV[F]_m;
  R_num : rotation F r;
  R_den : rotation F r;
  normalise : bool;
  token : 'rV[F]_d -> 'M[F]_(heads, m) -> 'rV[F]_d' }.

Definition layer_biases d d' (l : layer d d') :=
  {ffun 'I_(groups l) -> state F (r l) (m l)}.

Definition each n d e (f : 'rV[F]_d -> 'rV[F]_e) (X : 'M[F]_(n, d)) :=
  \matrix_(t < n) f (row t X).

Section Layer.
Variables (d d' : nat) (l : layer d d') (b : layer_biases l) (p : int).
Variables (P n : nat) (X : 'M[F]_(n, d)).

Definition attention (i : 'I_(heads l)) : 'M[F]_(n, m l) :=
  let g := group i in
  let q := each (phi_q i) X in
  let k := each (phi_k g) X in
  linear_attention (turned (R_num l) p q) (turned (R_num l) p k)
    (turned (R_den l) p q) (turned (R_den l) p k) (each (value g) X)
    (b g).1 (b g).2 P (normalise l).

Definition run_layer : 'M[F]_(n, d') :=
  \matrix_(t < n) token (row t X) (\matrix_(i < heads l) row t (attention i)).

(* What each group holds after the text.                                      *)
Definition absorb_layer : layer_biases l :=
  [ffun g => let k := each (phi_k g) X in
     state_after (turned (R_num l) p k) (turned (R_den l) p k)
       (each (value g) X) (b g).1 (b g).2].

Definition shift_layer (by' : int) : layer_biases l :=
  [ffun g => shift (R_num l) (R_den l) by' (b g)].
End Layer.

(* A transformer: layers of any shapes.                                       *)
Inductive transformer : nat -> nat -> Type :=
| Stop d : transformer d d
| Block d d' e (l : layer d d') (next : transformer d' e) : transformer d e.

Fixpoint biases d e (T : transformer d e) : Type :=
  match T with
  | Stop _ => unit
  | Block _ _ _ l next => (layer_biases l * biases next)%type
  end.

Fixpoint run d e (T : transformer d e) (p : int) (P : nat) :
    biases T -> forall n, 'M[F]_(n, d) -> 'M[F]_(n, e) :=
  match T with
  | Stop _ => fun _ _ X => X
  | Block _ _ _ l next => fun b _ X => run p P b.2 (run_layer b.1 p P X)
  end.

(* The states of all layers after the text, pushed through with the old       *)
(* biases.                                                                    *)
Fixpoint absorb d e (T : transformer d e) (p : int) (P : nat) :
    biases T -> forall n, 'M[F]_(n, d) -> biases T :=
  match T with
  | Stop _ => fun b _ _ => b
  | Block _ _ _ l next => fun b _ X =>
      (absorb_layer b.1 p X, absorb p P b.2 (run_layer b.1 p P X))
  end.

Fixpoint shift_all d e (T : transformer d e) (by' : int) :
    biases T -> biases T :=
  match T with
  | Stop _ => fun b => b
  | Block _ _ _ l next => fun b => (shift_layer b.1 by', shift_all by' b.2)
  end.

(* The prompt's states, seen from where the prompt began.                     *)
Definition convert d e (T : transformer d e) (p : int) (P : nat) (b : biases T)
    M (prompt : 'M[F]_(M, d)) : biases T :=
  shift_all (- M%:Z) (absorb p P b prompt).
End Conversion.

(* ------------------------------------------------------------------------- *)
(* One layer: positions that go on, and a shift.                              *)
Section OneLayer.
Variables (F : fieldType) (d d' : nat) (l : layer F d d').
Implicit Types (b : layer_biases l) (p : int) (P : nat) (i : 'I_(heads l)).

(* The program refuses a layer where a head meets a zero denominator.         *)
Definition defined_layer b p P n (X : 'M[F]_(n, d)) :=
  [forall i : 'I_(heads l),
     defined (turned (R_den l) p (each (phi_q i) X))
       (turned (R_den l) p (each (phi_k (group i)) X)) (b (group i)).2 P
       (normalise l)].

Lemma each_cat e e' (f : 'rV[F]_e -> 'rV[F]_e') M n
    (A : 'M[F]_(M, e)) (B : 'M[F]_(n, e)) :
  each f (col_mx A B) = col_mx (each f A) (each f B).
Proof.
apply/row_matrixP => t; case: (split_ordP t) => {}t ->.
  by rewrite rowKu !rowK rowKu.
by rewrite rowKd !rowK rowKd.
Qed.

Section Cat.
Variables (b : layer_biases l) (p : int) (P M n : nat).
Variables (prompt : 'M[F]_(M, d)) (X : 'M[F]_(n, d)).
Hypothesis H_P : (P <= M)%N.

(* One head: prompt and input in one pass are the prompt, and then the input  *)
(* that starts from the state after the prompt.                               *)
Theorem attn_cat i :
  attention b p P (col_mx prompt X) i =
  col_mx (attention b p P prompt i)
    (attention (absorb_layer b p prompt) (p + M%:Z) 0 X i).
Proof.
by rewrite /attention !each_cat !turned_cat split_invariance // ffunE.
Qed.

Lemma run_layer_cat :
  run_layer b p P (col_mx prompt X) =
  col_mx (run_layer b p P prompt)
    (run_layer (absorb_layer b p prompt) (p + M%:Z) 0 X).
Proof.
apply/row_matrixP => t; case: (split_ordP t) => {}t ->.
  rewrite rowKu !rowK rowKu; congr (token _ _).
  by apply/row_matrixP => i; rewrite [LHS]rowK [RHS]rowK attn_cat rowKu.
rewrite rowKd !rowK rowKd; congr (token _ _).
by apply/row_matrixP => i; rewrite [LHS]rowK [RHS]rowK attn_cat rowKd.
Qed.

Lemma defined_layer_cat :
  defined_layer b p P (col_mx prompt X) =
  defined_layer b p P prompt &&
  defined_layer (absorb_layer b p prompt) (p + M%:Z) 0 X.
Proof.
have E i := split_defined H_P (b (group i)).1 (b (group i)).2
  (turned (R_num l) p (each (phi_k (group i)) prompt))
  (turned (R_den l) p (each (phi_q i) prompt))
  (turned (R_den l) p (each (phi_k (group i)) prompt))
  (each (value (group i)) prompt)
  (turned (R_den l) (p + M%:Z) (each (phi_q i) X))
  (turned (R_den l) (p + M%:Z) (each (phi_k (group i)) X)) (normalise l).
apply/forallP/andP => [H | [/forallP HA /forallP HB] i].
  by split; apply/forallP => i; have := H i; rewrite !each_cat !turned_cat E;
     case/andP => //; rewrite ffunE.
by rewrite !each_cat !turned_cat E HA; have := HB i; rewrite ffunE.
Qed.

Lemma absorb_layer_cat :
  absorb_layer b p (col_mx prompt X) =
  absorb_layer (absorb_layer b p prompt) (p + M%:Z) X.
Proof.
by apply/ffunP => g; rewrite !ffunE /= !each_cat !turned_cat split_state.
Qed.
End Cat.

Section Shift.
Variables (b : layer_biases l) (p by' : int) (P n : nat) (X : 'M[F]_(n, d)).

Lemma attention_shift i :
  attention (shift_layer b by') (p + by') P X i = attention b p P X i.
Proof.
rewrite /attention ffunE.
exact: (shift_attend (R_num l) (R_den l) (b (group i), p) by').
Qed.

Lemma run_layer_shift :
  run_layer (shift_layer b by') (p + by') P X = run_layer b p P X.
Proof.
apply/row_matrixP => t; rewrite [LHS]rowK [RHS]rowK.
apply: (congr1 (token (row t X))); apply/row_matrixP => i.
by rewrite [LHS]rowK [RHS]rowK attention_shift.
Qed.

Lemma defined_layer_shift :
  defined_layer (shift_layer b by') (p + by') P X = defined_layer b p P X.
Proof.
apply: eq_forallb => i; rewrite ffunE.
exact: (shift_accepts (R_num l) (R_den l) (b (group i), p) by').
Qed.

Lemma absorb_layer_shift :
  absorb_layer (shift_layer b by') (p + by') X =
  shift_layer (absorb_layer b p X) by'.
Proof.
apply/ffunP => g; rewrite !ffunE.
exact: (congr1 fst (absorb_shift (R_num l) (R_den l) (b g, p) by'
  (each (phi_k g) X) (each (value g) X))).
Qed.
End Shift.
End OneLayer.

(* ------------------------------------------------------------------------- *)
(* The whole model, by induction over its layers.                             *)
Section Model.
Variable F : fieldType.

(* The program refuses a run in which some layer meets a zero denominator.    *)
Fixpoint defined_run d e (T : transformer F d e) (p : int) (P : nat) :
    biases T -> forall n, 'M[F]_(n, d) -> bool :=
  match T with
  | Stop _ => fun _ _ _ => true
  | Block _ _ _ l next => fun b _ X =>
      defined_layer b.1 p P X && defined_run p P b.2 (run_layer b.1 p P X)
  end.

(* Positions that go on (restart=False): prompt and input in one pass are the *)
(* prompt, and then the input, read where the prompt ended by the model that  *)
(* holds its states.  No hypothesis on positions.                             *)
Theorem run_cat d e (T : transformer F d e) p P (b : biases T) M n
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) (H_P : (P <= M)%N) :
  run p P b (col_mx prompt X) =
  col_mx (run p P b prompt) (run (p + M%:Z) 0 (absorb p P b prompt) X).
Proof.
elim: T b prompt X => [//|{}d d' {}e l T IH] b prompt X /=.
by rewrite run_layer_cat // IH.
Qed.

Theorem absorb_cat d e (T : transformer F d e) p P (b : biases T) M n
    (A : 'M_(M, d)) (B : 'M_(n, d)) (H_P : (P <= M)%N) :
  absorb p P b (col_mx A B) = absorb (p + M%:Z) 0 (absorb p P b A) B.
Proof.
elim: T b A B => [//|{}d d' {}e l T IH] b A B /=.
by rewrite absorb_layer_cat run_layer_cat // IH.
Qed.

Lemma defined_run_cat d e (T : transformer F d e) p P (b : biases T) M n
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) (H_P : (P <= M)%N) :
  defined_run p P b (col_mx prompt X) =
  defined_run p P b prompt &&
  defined_run (p + M%:Z) 0 (absorb p P b prompt) X.
Proof.
elim: T b prompt X => [//|{}d d' {}e l T IH] b prompt X /=.
by rewrite defined_layer_cat // run_layer_cat // IH andbACA.
Qed.

(* A model whose biases are shifted, read from the shifted position, is the   *)
(* same model.                                                                *)
Theorem run_shift d e (T : transformer F d e) p by' P (b : biases T) n
    (X : 'M_(n, d)) :
  run (p + by') P (shift_all by' b) X = run p P b X.
Proof.
elim: T b X => [//|{}d d' {}e l T IH] b X /=.
by rewrite run_layer_shift IH.
Qed.

Theorem defined_run_shift d e (T : transformer F d e) p by' P (b : biases T) n
    (X : 'M_(n, d)) :
  defined_run (p + by') P (shift_all by' b) X = defined_run p P b X.
Proof.
elim: T b X => [//|{}d d' {}e l T IH] b X /=.
by rewrite defined_layer_shift run_layer_shift IH.
Qed.

Theorem absorb_shift_all d e (T : transformer F d e) p by' P (b : biases T) n
    (X : 'M_(n, d)) :
  absorb (p + by') P (shift_all by' b) X = shift_all by' (absorb p P b X).
Proof.
elim: T b X => [//|{}d d' {}e l T IH] b X /=.
by rewrite absorb_layer_shift run_layer_shift IH.
Qed.

Lemma shift_layer0 d d' (l : layer F d d') (b : layer_biases l) :
  shift_layer b 0 = b.
Proof.
by apply/ffunP => g; rewrite ffunE /shift !turn0 !mul1mx; case: (b g).
Qed.

Lemma shift_layerD d d' (l : layer F d d') (b : layer_biases l) j k :
  shift_layer (shift_layer b j) k = shift_layer b (j + k).
Proof.
by apply/ffunP => g; rewrite !ffunE /shift /= [j + k]addrC !turnD !mulmxA.
Qed.

(* Shifts of all layers compose, and a shift by 0 is none.                    *)
Theorem shift_all0 d e (T : transformer F d e) (b : biases T) :
  shift_all 0 b = b.
Proof.
elim: T b => [//|{}d d' {}e l T IH] b /=.
by rewrite shift_layer0 IH; case: b.
Qed.

Theorem shift_allD d e (T : transformer F d e) (b : biases T) j k :
  shift_all k (shift_all j b) = shift_all (j + k) b.
Proof.
by elim: T b => [//|{}d d' {}e l T IH] b /=; rewrite shift_layerD IH.
Qed.

(* ------------------------------------------------------------------------- *)
(* ICLCA: the converted model, on the input alone, read where the prompt      *)
(* began, puts out what the model puts out on prompt and input.  P = 0 is the *)
(* causal mask, P = M the prefix mask under which the prompt's tokens all see *)
(* each other.                                                                *)
Theorem conversion_exact d e (T : transformer F d e) p P (b : biases T) M n
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) (H_P : (P <= M)%N) :
  dsubmx (run p P b (col_mx prompt X)) = run p 0 (convert p P b prompt) X.
Proof.
rewrite run_cat // col_mxKd -(run_shift (p + M%:Z) (- M%:Z)).
by rewrite addrK.
Qed.

(* The prompted run meets a zero denominator exactly if the pass over the     *)
(* prompt or the converted run does.                                          *)
Theorem conversion_defined d e (T : transformer F d e) p P (b : biases T) M n
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) (H_P : (P <= M)%N) :
  defined_run p P b (col_mx prompt X) =
  defined_run p P b prompt && defined_run p 0 (convert p P b prompt) X.
Proof.
rewrite defined_run_cat // -(defined_run_shift (p + M%:Z) (- M%:Z)).
by rewrite addrK.
Qed.

(* The two masks of the library.                                              *)
Corollary conversion_causal d e (T : transformer F d e) p (b : biases T) M n
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) :
  dsubmx (run p 0 b (col_mx prompt X)) = run p 0 (convert p 0 b prompt) X.
Proof. exact: conversion_exact. Qed.

Corollary conversion_prefix d e (T : transformer F d e) p (b : biases T) M n
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) :
  dsubmx (run p M b (col_mx prompt X)) = run p 0 (convert p M b prompt) X.
Proof. exact: conversion_exact. Qed.
End Model.

(* ------------------------------------------------------------------------- *)
(* The biases themselves.                                                     *)
Section Biases.
Variable F : fieldType.

(* Conversion of one layer, given what enters it.                             *)
Definition convert_layer d d' (l : layer F d d') (b : layer_biases l) (p : int)
    M (prompt : 'M[F]_(M, d)) : layer_biases l :=
  shift_layer (absorb_layer b p prompt) (- M%:Z).

(* Layer by layer: the bias of a layer is made of what enters it, and what    *)
(* leaves it, pushed through with the old bias, enters the next.              *)
Lemma convert_block d d' e (l : layer F d d') (next : transformer F d' e)
    p P (b : biases (Block l next)) M (prompt : 'M_(M, d)) :
  convert p P b prompt =
  (convert_layer b.1 p prompt,
   convert p P b.2 (run_layer b.1 p P prompt)).
Proof. by []. Qed.

(* What enters a layer of both sides alike leaves it alike, at any depth.     *)
Theorem convert_layer_exact d d' (l : layer F d d') (b : layer_biases l) p P
    M n (prompt : 'M_(M, d)) (X : 'M_(n, d)) (H_P : (P <= M)%N) :
  dsubmx (run_layer b p P (col_mx prompt X)) =
  run_layer (convert_layer b p prompt) p 0 X.
Proof.
rewrite (run_layer_cat _ _ _ _ H_P) col_mxKd.
by rewrite -(run_layer_shift _ (p + M%:Z) (- M%:Z)) addrK.
Qed.

Theorem convert_layer_defined d d' (l : layer F d d') (b : layer_biases l) p P
    M n (prompt : 'M_(M, d)) (X : 'M_(n, d)) (H_P : (P <= M)%N) :
  defined_layer b p P (col_mx prompt X) =
  defined_layer b p P prompt && defined_layer (convert_layer b p prompt) p 0 X.
Proof.
rewrite (defined_layer_cat _ _ _ _ H_P).
by rewrite -(defined_layer_shift _ (p + M%:Z) (- M%:Z)) addrK.
Qed.

(* The formula: the prompt's token number j stands at p + j - M.              *)
Section Formula.
Variables (d d' : nat) (l : layer F d d') (b : layer_biases l) (p : int).
Variables (M : nat) (prompt : 'M[F]_(M, d)) (g : 'I_(groups l)).
Local Notation k j := (phi_k g (row j prompt)).
Local Notation v j := (value g (row j prompt)).

Definition bias_KV : 'M[F]_(r l, m l) :=
  R_num l (- M%:Z) *m (b g).1
  + \sum_(j < M) R_num l (p + j%:Z - M%:Z) *m (k j)^T *m v j.

Definition bias_D : 'cV[F]_(r l) :=
  R_den l (- M%:Z) *m (b g).2
  + \sum_(j < M) R_den l (p + j%:Z - M%:Z) *m (k j)^T.

Lemma convert_layerE : convert_layer b p prompt g = (bias_KV, bias_D).
Proof.
rewrite /convert_layer !ffunE /shift /state_after /= !mulmxDr !mulmx_sumr.
rewrite /bias_KV /bias_D; congr (_ + _, _ + _); apply: eq_bigr => j _.
  by rewrite !rowK trmx_mul trmxK !mulmxA -turnD [- _ + _]addrC.
by rewrite !rowK trmx_mul trmxK !mulmxA -turnD [- _ + _]addrC.
Qed.
End Formula.

Fixpoint iclca d e (T : transformer F d e) (p : int) (P : nat) :
    biases T -> forall M, 'M[F]_(M, d) -> biases T :=
  match T with
  | Stop _ => fun b _ _ => b
  | Block _ _ _ l next => fun b _ prompt =>
      ([ffun g => (bias_KV b.1 p prompt g, bias_D b.1 p prompt g)],
       iclca p P b.2 (run_layer b.1 p P prompt))
  end.

(* The biases of the converted model are, in every layer and group of heads,  *)
(*   R_(-M) b_KV + sum_j R_(p+j-M) phi(k'_j)^T v'_j,                          *)
(*   R_(-M) b_D  + sum_j R_(p+j-M) phi(k'_j)^T,                               *)
(* the first with the rotation of the numerator, the second with that of the  *)
(* denominator; k', v' are of the prompt as it enters the layer.              *)
Theorem bias_formula d e (T : transformer F d e) p P (b : biases T) M
    (prompt : 'M_(M, d)) :
  convert p P b prompt = iclca p P b prompt.
Proof.
elim: T b prompt => [//|{}d d' {}e l T IH] b prompt.
rewrite convert_block IH /=; congr pair.
by apply/ffunP => g; rewrite convert_layerE ffunE.
Qed.

(* Positions from 0 and RoPE after phi: b_D is never turned.                  *)
Corollary bias_formula_rope d d' (l : layer F d d') (b : layer_biases l) M
    (prompt : 'M_(M, d)) g (H_den : forall a, R_den l a = 1%:M) :
  convert_layer b 0 prompt g =
  (R_num l (- M%:Z) *m (b g).1
   + \sum_(j < M) R_num l (j%:Z - M%:Z) *m (phi_k g (row j prompt))^T
                    *m value g (row j prompt),
   (b g).2 + \sum_(j < M) (phi_k g (row j prompt))^T).
Proof.
rewrite convert_layerE /bias_KV /bias_D H_den mul1mx; congr (_ + _, _ + _).
by apply: eq_bigr => j _; rewrite H_den mul1mx.
Qed.

(* ------------------------------------------------------------------------- *)
(* No prompt changes nothing; prompt after prompt is both at once.            *)
Theorem convert_nil d e (T : transformer F d e) p P (b : biases T)
    (prompt : 'M_(0, d)) :
  convert p P b prompt = b.
Proof.
rewrite /convert shift_all0.
elim: T b prompt => [//|{}d d' {}e l T IH] b prompt /=.
rewrite IH; case: b => b1 b2; congr (_, _); apply/ffunP => g.
by rewrite ffunE /state_after !big_ord0 !addr0; case: (b1 g).
Qed.

(* A under its mask, then B causally: for P = 0, converting P1 and then P2 is *)
(* converting P1 ++ P2.                                                       *)
Theorem convert_cat d e (T : transformer F d e) p P (b : biases T) M n
    (A : 'M_(M, d)) (B : 'M_(n, d)) (H_P : (P <= M)%N) :
  convert p 0 (convert p P b A) B = convert p P b (col_mx A B).
Proof.
rewrite /convert absorb_cat // PoszD opprD -shift_allD.
by rewrite -[X in absorb X _ _ B](addrK M%:Z) absorb_shift_all.
Qed.

(* A prompt that comes in pieces: each is pushed through the model that has   *)
(* absorbed those before it, positions going on; in the end all is shifted.   *)
Definition texts d := seq {M & 'M[F]_(M, d)}.

Fixpoint glue d (pieces : texts d) : {M & 'M[F]_(M, d)} :=
  if pieces is existT M A :: rest then
    let: existT n B := glue rest in existT _ (M + n)%N (col_mx A B)
  else existT _ 0%N (0 : 'M[F]_(0, d)).

Fixpoint absorb_pieces d e (T : transformer F d e) (p : int) (b : biases T)
    (pieces : texts d) : biases T :=
  if pieces is existT M A :: rest then
    absorb_pieces (p + M%:Z) (absorb p 0 b A) rest
  else b.

Theorem convert_pieces d e (T : transformer F d e) p (b : biases T)
    (pieces : texts d) :
  convert p 0 b (projT2 (glue pieces)) =
  shift_all (- (projT1 (glue pieces))%:Z) (absorb_pieces p b pieces).
Proof.
congr shift_all; elim: pieces p b => [|[M A] rest IH] p b /=.
  by have := convert_nil p 0 b 0; rewrite /convert shift_all0.
by rewrite -IH; case: (glue rest) => n B /=; rewrite absorb_cat.
Qed.
End Biases.

(* ------------------------------------------------------------------------- *)
(* One layer: biases that were converted independently join by a shift.       *)
Section Join.
Variables (F : fieldType) (d d' : nat) (l : layer F d d').

Definition no_bias : layer_biases l := [ffun=> (0, 0)].

Definition add_layer (b b' : layer_biases l) : layer_biases l :=
  [ffun g => ((b g).1 + (b' g).1, (b g).2 + (b' g).2)].

(* R_(-M2) b_1 + b_2 is the bias of both prompts, where b_1 may already hold  *)
(* a bias from before.  For one layer; for more there is no such formula.     *)
Theorem join_layer (b : layer_biases l) p M1 M2
    (A : 'M_(M1, d)) (B : 'M_(M2, d)) :
  convert_layer b p (col_mx A B) =
  add_layer (shift_layer (convert_layer b p A) (- M2%:Z))
            (convert_layer no_bias p B).
Proof.
have E (b' : layer_biases l) q :
    absorb_layer b' q B = add_layer b' (absorb_layer no_bias q B).
  by apply/ffunP => g; rewrite !ffunE /state_after /= !add0r.
have D (b1 b2 : layer_biases l) k : shift_layer (add_layer b1 b2) k =
    add_layer (shift_layer b1 k) (shift_layer b2 k).
  by apply/ffunP => g; rewrite !ffunE /shift /= !mulmxDr.
rewrite /convert_layer absorb_layer_cat E D shift_layerD PoszD opprD.
apply: (congr1 (add_layer _)); rewrite -shift_layerD -absorb_layer_shift addrK.
apply: (congr1 (fun b => shift_layer (absorb_layer b p B) _)).
by apply/ffunP => g; rewrite !ffunE /shift !mulmx0.
Qed.
End Join.

(* ------------------------------------------------------------------------- *)
(* Strength and removal, as in conversion.py.                                 *)
Section Strength.
Variable F : fieldType.

(* b + lambda (b' - b)                                                        *)
Definition blend_layer d d' (l : layer F d d') lambda
    (old new : layer_biases l) : layer_biases l :=
  [ffun g => ((1 - lambda) *: (old g).1 + lambda *: (new g).1,
              (1 - lambda) *: (old g).2 + lambda *: (new g).2)].

Fixpoint blend d e (T : transformer F d e) lambda :
    biases T -> biases T -> biases T :=
  match T with
  | Stop _ => fun old _ => old
  | Block _ _ _ l next => fun old new =>
      (blend_layer lambda old.1 new.1, blend lambda old.2 new.2)
  end.

Definition convert_strength d e (T : transformer F d e) lambda p P
    (b : biases T) M (prompt : 'M[F]_(M, d)) : biases T :=
  shift_all (- M%:Z) (blend lambda b (absorb p P b prompt)).

(* Strength 1 is conversion.                                                  *)
Theorem convert_strength1 d e (T : transformer F d e) p P (b : biases T) M
    (prompt : 'M_(M, d)) :
  convert_strength 1 p P b prompt = convert p P b prompt.
Proof.
congr shift_all; move: (absorb _ _ _ _) => new.
elim: T b new {prompt} => [d0 [] [] //|{}d d' {}e l T IH] b new /=.
rewrite IH [RHS]surjective_pairing; congr (_, _); apply/ffunP => g.
by rewrite ffunE subrr !scale0r !add0r !scale1r; case: (new.1 g).
Qed.

(* From a layer's state after the text, the text is taken out again.  [remove *)
(* whole text] is that of state.py.                                           *)
Definition unabsorb_layer d d' (l : layer F d d') lambda
    (b' : layer_biases l) (p : int) M (prompt : 'M[F]_(M, d)) :
    layer_biases l :=
  [ffun g =>
     let text := absorb_text (R_num l) (R_den l) (no_text F _ _ p)
                   (each (phi_k g) prompt) (each (value g) prompt) in
     (remove (R_num l) (R_den l) (b' g, p + M%:Z) (scale text lambda) p).1].

(* Layer by layer, since the keys of a layer need the old biases of those     *)
(* below it.                                                                  *)
Fixpoint unabsorb d e (T : transformer F d e) lambda (p : int) (P : nat) :
    biases T -> forall M, 'M[F]_(M, d) -> biases T :=
  match T with
  | Stop _ => fun b' _ _ => b'
  | Block _ _ _ l next => fun b' _ prompt =>
      let old := unabsorb_layer lambda b'.1 p prompt in
      (old, unabsorb lambda p P b'.2 (run_layer old p P prompt))
  end.

Definition unconvert d e (T : transformer F d e) lambda p P (b' : biases T)
    M (prompt : 'M[F]_(M, d)) : biases T :=
  unabsorb lambda p P (shift_all M%:Z b') prompt.

Section Layer.
Variables (d d' : nat) (l : layer F d d') (lambda : F) (p : int).
Variables (M : nat) (prompt : 'M[F]_(M, d)).
Implicit Type b : layer_biases l.

Let text g := absorb_text (R_num l) (R_den l) (no_text F _ _ p)
  (each (phi_k g) prompt) (each (value g) prompt).

Lemma blend_absorb b g :
  (blend_layer lambda b (absorb_layer b p prompt) g, p + M%:Z) =
  join (R_num l) (R_den l) (b g, p) (scale (text g) lambda) p.
Proof.
rewrite /join subrr shift_past0 /text /blend_layer !ffunE /state_after /=.
by rewrite !add0r !scalerDr !addrA !scalerBl !scale1r !subrK.
Qed.

Lemma unabsorb_blend b :
  unabsorb_layer lambda (blend_layer lambda b (absorb_layer b p prompt)) p
    prompt = b.
Proof.
apply/ffunP => g; rewrite ffunE blend_absorb.
exact: (congr1 fst (remove_join _ _ (b g, p) (scale (text g) lambda) p)).
Qed.

Lemma blend_unabsorb b (old := unabsorb_layer lambda b p prompt) :
  blend_layer lambda old (absorb_layer old p prompt) = b.
Proof.
apply/ffunP => g; apply: (congr1 fst (_ : (_, p + M%:Z) = (_, p + M%:Z))).
have E : (old g, p) =
    remove (R_num l) (R_den l) (b g, p + M%:Z) (scale (text g) lambda) p.
  rewrite /old ffunE [RHS]surjective_pairing; congr (_, _).
  by rewrite /remove /= opprB addrC subrK.
by rewrite blend_absorb E join_remove.
Qed.
End Layer.

(* Removal: the prompt converted last can be taken out again, at any          *)
(* strength; and what was taken out can be put back.                          *)
Theorem unconvert_convert d e (T : transformer F d e) lambda p P
    (b : biases T) M (prompt : 'M_(M, d)) :
  unconvert lambda p P (convert_strength lambda p P b prompt) prompt = b.
Proof.
rewrite /unconvert /convert_strength shift_allD addNr shift_all0.
elim: T b prompt => [//|{}d d' {}e l T IH] b prompt /=.
by rewrite unabsorb_blend IH; case: b.
Qed.

Theorem convert_unconvert d e (T : transformer F d e) lambda p P
    (b : biases T) M (prompt : 'M_(M, d)) :
  convert_strength lambda p P (unconvert lambda p P b prompt) prompt = b.
Proof.
rewrite /unconvert /convert_strength.
suff -> (b' : biases T) : blend lambda (unabsorb lambda p P b' prompt)
    (absorb p P (unabsorb lambda p P b' prompt) prompt) = b'.
  by rewrite shift_allD addrN shift_all0.
elim: T {b} b' prompt => [//|{}d d' {}e l T IH] b prompt /=.
by rewrite blend_unabsorb IH; case: b.
Qed.

(* In particular what [convert] itself made is undone, at strength 1.         *)
Corollary unconvert_convert1 d e (T : transformer F d e) p P
    (b : biases T) M (prompt : 'M_(M, d)) :
  unconvert 1 p P (convert p P b prompt) prompt = b.
Proof. by rewrite -convert_strength1 unconvert_convert. Qed.
End Strength.

(* ------------------------------------------------------------------------- *)
(* What strength means, said without conversion: in one pass over prompt and  *)
(* input, a query of the input counts each token of the prompt lambda times,  *)
(* in every layer; everything else counts once.  w t s is how often t counts  *)
(* s.                                                                         *)
Section Weighted.
Variables (F : fieldType) (w : nat -> nat -> F).

Section Sum.
Variables (n r m : nat) (fq fk gq gk : 'M[F]_(n, r)) (v : 'M[F]_(n, m)).
Variables (S : 'M[F]_(r, m)) (z : 'cV[F]_r) (P : nat).

Definition num_weighted (t : 'I_n) := row t fq *m
  (S + \sum_(s < n | seen P t s) w t s *: ((row s fk)^T *m row s v)).

Definition den_weighted (t : 'I_n) := (row t gq *m
  (z + \sum_(s < n | seen P t s) w t s *: (row s gk)^T)) 0 0.

(* MathComp's x / 0 is 0; [defined_weighted] says where the program refuses.  *)
Definition attention_weighted (normalise : bool) : 'M[F]_(n, m) :=
  \matrix_(t < n) (if normalise then (den_weighted t)^-1 *: num_weighted t
                   else num_weighted t).

Definition defined_weighted (normalise : bool) :=
  normalise ==> [forall t, den_weighted t != 0].
End Sum.

Section Layer.
Variables (d d' : nat) (l : layer F d d') (b : layer_biases l) (p : int).
Variables (P n : nat) (X : 'M[F]_(n, d)).

Definition head_weighted (i : 'I_(heads l)) : 'M[F]_(n, m l) :=
  let g := group i in
  let q := each (phi_q i) X in
  let k := each (phi_k g) X in
  attention_weighted (turned (R_num l) p q) (turned (R_num l) p k)
    (turned (R_den l) p q) (turned (R_den l) p k) (each (value g) X)
    (b g).1 (b g).2 P (normalise l).

Definition run_layer_weighted : 'M[F]_(n, d') :=
  \matrix_(t < n)
    token (row t X) (\matrix_(i < heads l) row t (head_weighted i)).

Definition defined_layer_weighted :=
  [forall i : 'I_(heads l),
     defined_weighted (turned (R_den l) p (each (phi_q i) X))
       (turned (R_den l) p (each (phi_k (group i)) X)) (b (group i)).2 P
       (normalise l)].
End Layer.

Fixpoint run_weighted d e (T : transformer F d e) (p : int) (P : nat) :
    biases T -> forall n, 'M[F]_(n, d) -> 'M[F]_(n, e) :=
  match T with
  | Stop _ => fun _ _ X => X
  | Block _ _ _ l next => fun b _ X =>
      run_weighted p P b.2 (run_layer_weighted b.1 p P X)
  end.

Fixpoint defined_run_weighted d e (T : transformer F d e) (p : int) (P : nat) :
    biases T -> forall n, 'M[F]_(n, d) -> bool :=
  match T with
  | Stop _ => fun _ _ _ => true
  | Block _ _ _ l next => fun b _ X =>
      defined_layer_weighted b.1 p P X &&
      defined_run_weighted p P b.2 (run_layer_weighted b.1 p P X)
  end.

Lemma num_weighted1 (H_w : forall t s, w t s = 1) n r m
    (fq fk : 'M[F]_(n, r)) (v : 'M[F]_(n, m)) S P t :
  num_weighted fq fk v S P t = num fq fk v S P t.
Proof. by rewrite /num_weighted; under eq_bigr do rewrite H_w scale1r. Qed.

Lemma den_weighted1 (H_w : forall t s, w t s = 1) n r
    (gq gk : 'M[F]_(n, r)) z P t :
  den_weighted gq gk z P t = den gq gk z P t.
Proof. by rewrite /den_weighted; under eq_bigr do rewrite H_w scale1r. Qed.

(* If everything counts once, this is the model as it was.                    *)
Theorem run_weighted1 (H_w : forall t s, w t s = 1) d e (T : transformer F d e)
    p P (b : biases T) n (X : 'M_(n, d)) :
  run_weighted p P b X = run p P b X.
Proof.
elim: T b X => [//|{}d d' {}e l T IH] b X /=; rewrite IH.
apply: (congr1 (fun Y => run p P b.2 Y)).
apply/row_matrixP => t; rewrite [LHS]rowK [RHS]rowK.
apply: (congr1 (token _)); apply/row_matrixP => i; rewrite [LHS]rowK [RHS]rowK.
by rewrite [LHS]rowK [RHS]rowK num_weighted1 // den_weighted1.
Qed.
End Weighted.

Section StrengthExact.
Variables (F : fieldType) (lambda : F) (M n P : nat).
Hypothesis H_P : (P <= M)%N.

(* The input, from M on, counts what is before M lambda times.                *)
Definition weight t s : F := if (s < M <= t)%N then lambda else 1.

Section Num.
Variables (r m : nat) (S : 'M[F]_(r, m)).
Variables (fqA fkA : 'M[F]_(M, r)) (vA : 'M[F]_(M, m)).
Variables (fqB fkB : 'M[F]_(n, r)) (vB : 'M[F]_(n, m)).

Lemma num_weighted_A t :
  num_weighted weight (col_mx fqA fqB) (col_mx fkA fkB) (col_mx vA vB) S P
    (lshift n t) = num fqA fkA vA S P t.
Proof.
rewrite /num_weighted /num /S_at rowKu big_split_ord /=.
rewrite [X in _ + (_ + X)]big_pred0 => [|s]; last by rewrite seen_AB.
rewrite addr0; congr (_ *m (_ + _)); apply: eq_bigr => s _.
by rewrite /weight /= (leqNgt M t) !ltn_ord scale1r !rowKu.
Qed.

Lemma num_weighted_B t :
  num_weighted weight (col_mx fqA fqB) (col_mx fkA fkB) (col_mx vA vB) S P
    (rshift M t) =
  num fqB fkB vB (S + lambda *: \sum_(s < M) (row s fkA)^T *m row s vA) 0 t.
Proof.
rewrite /num_weighted /num /S_at rowKd big_split_ord /= addrA scaler_sumr.
apply: (congr1 (mulmx _)); apply: (congr2 (fun A B => S + A + B)).
  apply: eq_big => s; first by rewrite seen_BA.
  by rewrite /weight /= ltn_ord leq_addr !rowKu.
apply: eq_big => s; first by rewrite seen_BB.
by rewrite /weight /= ltnNge leq_addr scale1r !rowKd.
Qed.
End Num.

Section Den.
Variables (r : nat) (z : 'cV[F]_r).
Variables (gqA gkA : 'M[F]_(M, r)) (gqB gkB : 'M[F]_(n, r)).

Lemma den_weightedE k (w : nat -> nat -> F) (gq gk : 'M[F]_(k, r)) t :
  den_weighted w gq gk z P t =
  num_weighted w gq gk (const_mx 1 : 'cV_k) z P t 0 0.
Proof.
congr fun_of_matrix; congr (_ *m (_ + _)); apply: eq_bigr => s _.
congr (_ *: _); apply/matrixP => i j; rewrite [RHS]mxE big_ord1 !mxE.
by rewrite mulr1.
Qed.

Lemma den_weighted_A t :
  den_weighted weight (col_mx gqA gqB) (col_mx gkA gkB) z P (lshift n t) =
  den gqA gkA z P t.
Proof. by rewrite den_weightedE -col_mx_const num_weighted_A denE. Qed.

Lemma den_weighted_B t :
  den_weighted weight (col_mx gqA gqB) (col_mx gkA gkB) z P (rshift M t) =
  den gqB gkB (z + lambda *: \sum_(s < M) (row s gkA)^T) 0 t.
Proof.
rewrite den_weightedE -col_mx_const num_weighted_B denE.
by rewrite sum_rowT sum_outer.
Qed.
End Den.

Section Layer.
Variables (d d' : nat) (l : layer F d d') (b : layer_biases l) (p : int).
Variables (prompt : 'M[F]_(M, d)) (X : 'M[F]_(n, d)).
Let b' := blend_layer lambda b (absorb_layer b p prompt).

Lemma blendE g : b' g =
  ((b g).1 + lambda *: \sum_(s < M)
     (row s (turned (R_num l) p (each (phi_k g) prompt)))^T
       *m row s (each (value g) prompt),
   (b g).2 + lambda *: \sum_(s < M)
     (row s (turned (R_den l) p (each (phi_k g) prompt)))^T).
Proof.
rewrite /b' !ffunE /state_after /= !scalerDr !addrA !scalerBl !scale1r.
by rewrite !subrK.
Qed.

Lemma head_weighted_cat i :
  head_weighted weight b p P (col_mx prompt X) i =
  col_mx (attention b p P prompt i) (attention b' (p + M%:Z) 0 X i).
Proof.
rewrite /head_weighted /attention blendE !each_cat !turned_cat.
apply/row_matrixP => t; case: (split_ordP t) => {}t ->.
  by rewrite rowKu !rowK num_weighted_A den_weighted_A.
by rewrite rowKd !rowK num_weighted_B den_weighted_B.
Qed.

Lemma run_layer_weighted_cat :
  run_layer_weighted weight b p P (col_mx prompt X) =
  col_mx (run_layer b p P prompt) (run_layer b' (p + M%:Z) 0 X).
Proof.
apply/row_matrixP => t; case: (split_ordP t) => {}t ->.
  rewrite rowKu [LHS]rowK [RHS]rowK rowKu.
  apply: (congr1 (token _)); apply/row_matrixP => i.
  by rewrite [LHS]rowK [RHS]rowK head_weighted_cat rowKu.
rewrite rowKd [LHS]rowK [RHS]rowK rowKd.
apply: (congr1 (token _)); apply/row_matrixP => i.
by rewrite [LHS]rowK [RHS]rowK head_weighted_cat rowKd.
Qed.

Lemma defined_layer_weighted_cat :
  defined_layer_weighted weight b p P (col_mx prompt X) =
  defined_layer b p P prompt && defined_layer b' (p + M%:Z) 0 X.
Proof.
have E i : defined_weighted weight
      (turned (R_den l) p (each (phi_q i) (col_mx prompt X)))
      (turned (R_den l) p (each (phi_k (group i)) (col_mx prompt X)))
      (b (group i)).2 P (normalise l) =
    defined (turned (R_den l) p (each (phi_q i) prompt))
      (turned (R_den l) p (each (phi_k (group i)) prompt))
      (b (group i)).2 P (normalise l) &&
    defined (turned (R_den l) (p + M%:Z) (each (phi_q i) X))
      (turned (R_den l) (p + M%:Z) (each (phi_k (group i)) X))
      (b' (group i)).2 0 (normalise l).
  rewrite blendE !each_cat !turned_cat /defined_weighted /defined.
  case: (normalise l) => //=; apply/forallP/andP => [H | [HA HB] t].
    split; apply/forallP => t.
      by have := H (lshift n t); rewrite den_weighted_A.
    by have := H (rshift M t); rewrite den_weighted_B.
  case: (split_ordP t) => {}t ->.
    by rewrite den_weighted_A; move/forallP: HA.
  by rewrite den_weighted_B; move/forallP: HB.
apply/forallP/andP => [H | [/forallP HA /forallP HB] i].
  by split; apply/forallP => i; have := H i; rewrite E => /andP[].
by rewrite E HA HB.
Qed.
End Layer.

(* The model whose biases count the prompt lambda times, on the input alone,  *)
(* puts out what the pass over both puts out in which the input counts each   *)
(* token of the prompt lambda times: the whole model, any lambda of the field.*)
Theorem strength_exact d e (T : transformer F d e) p (b : biases T)
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) :
  dsubmx (run_weighted weight p P b (col_mx prompt X)) =
  run p 0 (convert_strength lambda p P b prompt) X.
Proof.
rewrite /convert_strength -[X in run X](addrK M%:Z) run_shift.
suff -> : run_weighted weight p P b (col_mx prompt X) =
    col_mx (run p P b prompt)
      (run (p + M%:Z) 0 (blend lambda b (absorb p P b prompt)) X).
  by rewrite col_mxKd.
elim: T b prompt X => [//|{}d d' {}e l T IH] b prompt X /=.
by rewrite run_layer_weighted_cat IH.
Qed.

(* And it meets a zero denominator exactly where that pass does.              *)
Theorem strength_defined d e (T : transformer F d e) p (b : biases T)
    (prompt : 'M_(M, d)) (X : 'M_(n, d)) :
  defined_run_weighted weight p P b (col_mx prompt X) =
  defined_run p P b prompt &&
  defined_run p 0 (convert_strength lambda p P b prompt) X.
Proof.
rewrite /convert_strength -[X in defined_run X 0](addrK M%:Z).
rewrite defined_run_shift.
elim: T b prompt X => [//|{}d d' {}e l T IH] b prompt X /=.
by rewrite defined_layer_weighted_cat run_layer_weighted_cat IH andbACA.
Qed.
End StrengthExact.

(* ------------------------------------------------------------------------- *)
(* Generation: after conversion the same tokens are written.  [next j] is any *)
(* rule, greedy or with random numbers drawn beforehand, that makes the token *)
(* to append from what the model puts out last, j being how many are to come  *)
(* after it.                                                                  *)
Section Generation.
Variables (F : fieldType) (d e : nat) (T : transformer F d e).
Variable next : nat -> 'rV[F]_e -> 'rV[F]_d.

Fixpoint generate p P (b : biases T) k n (X : 'M[F]_(n, d)) : seq 'rV[F]_d :=
  if k is k'.+1 then
    let x := next k' (last 0 (rows (run p P b X))) in
    x :: generate p P b k' (col_mx X x)
  else [::].

Lemma rows_cat M n c (A : 'M[F]_(M, c)) (B : 'M[F]_(n, c)) :
  rows (col_mx A B) = rows A ++ rows B.
Proof.
have s k (C : 'M[F]_(k, c)) : size (rows C) = k.
  by rewrite size_map size_enum_ord.
have nthE k (C : 'M[F]_(k, c)) (t : 'I_k) : nth 0 (rows C) t = row t C.
  by rewrite (nth_map t) ?size_enum_ord // nth_ord_enum.
apply: (@eq_from_nth _ 0) => [|t]; first by rewrite size_cat !s.
rewrite s => lt_t; rewrite -[t]/(val (Ordinal lt_t)) nthE nth_cat s.
case: (split_ordP (Ordinal lt_t)) => u ->.
  by rewrite rowKu /= nthE.
by rewrite rowKd /= addKn nthE.
Qed.

Lemma generate_cast p P b k n n' (E : n = n') (X : 'M_(n, d)) :
  generate p P b k (castmx (E, erefl) X) = generate p P b k X.
Proof. by case: n' / E; rewrite castmx_id. Qed.

Theorem generate_exact p P (b : biases T) k M n (prompt : 'M_(M, d))
    (X : 'M_(n, d)) (H_P : (P <= M)%N) (H_n : (0 < n)%N) :
  generate p P b k (col_mx prompt X) =
  generate p 0 (convert p P b prompt) k X.
Proof.
elim: k n X H_n => [//|k IH] n X H_n /=.
have -> : last 0 (rows (run p P b (col_mx prompt X))) =
          last 0 (rows (run p 0 (convert p P b prompt) X)).
  rewrite -(conversion_exact _ _ _ _ H_P) run_cat // col_mxKd rows_cat last_cat.
  move: (run (p + _) _ _ _) H_n => Y; case: n {X} Y => // n Y _.
  by rewrite /rows enum_ordSl.
move: (next k _) => x; congr (_ :: _).
by rewrite -(IH _ (col_mx X x)) ?addn_gt0 ?H_n // col_mxA generate_cast.
Qed.
End Generation.

(* ------------------------------------------------------------------------- *)
(* Causality of the whole model: two texts that agree on the tokens that t    *)
(* sees give the same output at t.                                            *)
Section Causality.
Variable F : fieldType.

Lemma seen_self P t : seen P t t.
Proof. by rewrite /seen leq_max ltnSn. Qed.

Lemma seen_trans P t s u : seen P t s -> seen P s u -> seen P t u.
Proof.
rewrite /seen !leq_max => /orP[st | sP] /orP[us | uP]; rewrite ?uP ?orbT //.
  by rewrite (leq_trans us st).
by rewrite (leq_trans us sP) orbT.
Qed.

Theorem run_causal d e (T : transformer F d e) p P (b : biases T) n
    (X Y : 'M_(n, d)) (t : 'I_n)
    (H_seen : forall s : 'I_n, seen P t s -> row s X = row s Y) :
  row t (run p P b X) = row t (run p P b Y).
Proof.
elim: T b X Y H_seen => [d0|{}d d' {}e l T IH] b X Y H_seen /=.
  exact: H_seen (seen_self _ _).
apply: IH => s ts; rewrite [LHS]rowK [RHS]rowK (H_seen s ts).
apply: (congr1 (token _)); apply/row_matrixP => i; rewrite [LHS]rowK [RHS]rowK.
apply: (causality _ _ _ _ _).2; rewrite ?rowK ?H_seen // => u su.
by rewrite !rowK H_seen // (seen_trans ts).
Qed.
End Causality.

(* ------------------------------------------------------------------------- *)
(* The layers of model/attention_layers.py are layers of this file: q,        *)
(* k, v are linear in the normalised token (with or without b_Q, b_K, b_V),   *)
(* phi acts on q and k, and [o_1 ... o_H] W_O goes with the token into the    *)
(* rest: residual, norms, MLP, in the order pre, post or parallel.            *)
Section Library.
Variable F : fieldType.

Definition library_layer d d' dk r m width heads groups
    (group : 'I_heads -> 'I_groups) (norm_1 : 'rV[F]_d -> 'rV[F]_d)
    (W_Q : 'I_heads -> 'M[F]_(d, dk)) (b_Q : 'I_heads -> 'rV[F]_dk)
    (W_K : 'I_groups -> 'M[F]_(d, dk)) (b_K : 'I_groups -> 'rV[F]_dk)
    (W_V : 'I_groups -> 'M[F]_(d, m)) (b_V : 'I_groups -> 'rV[F]_m)
    (phi_q phi_k : 'rV[F]_dk -> 'rV[F]_r) (R_num R_den : rotation F r)
    (normalise : bool) (W_O : 'M[F]_(heads * m, width))
    (rest : 'rV[F]_d -> 'rV[F]_width -> 'rV[F]_d') : layer F d d' :=
  {| heads := heads; groups := groups; r := r; m := m; group := group;
     phi_q := fun i x => phi_q (norm_1 x *m W_Q i + b_Q i);
     phi_k := fun g x => phi_k (norm_1 x *m W_K g + b_K g);
     value := fun g x => norm_1 x *m W_V g + b_V g;
     R_num := R_num; R_den := R_den; normalise := normalise;
     token := fun x o => rest x (mxvec o *m W_O) |}.

(* One head, phi = identity, no denominator, no positions.                    *)
Definition linear_layer d d' dk m (W_Q W_K : 'M[F]_(d, dk)) (W_V : 'M[F]_(d, m))
    (rest : 'rV[F]_d -> 'rV[F]_(1 * m) -> 'rV[F]_d') : layer F d d' :=
  @library_layer d d' dk dk m (1 * m) 1 1 id id
    (fun=> W_Q) (fun=> 0) (fun=> W_K) (fun=> 0) (fun=> W_V) (fun=> 0)
    id id (no_rotation F dk) (no_rotation F dk) false 1%:M rest.

(* Theorem 4.1: there, b'_KV = b_KV + W_K^T X'^T X' W_V.                      *)
Theorem iclca_linear d d' dk m (W_Q W_K : 'M[F]_(d, dk)) (W_V : 'M[F]_(d, m))
    (rest : 'rV[F]_d -> 'rV[F]_(1 * m) -> 'rV[F]_d')
    (l := linear_layer W_Q W_K W_V rest) (b : layer_biases l) p M
    (X' : 'M_(M, d)) (g : 'I_(groups l)) :
  (convert_layer b p X' g).1 = (b g).1 + W_K^T *m X'^T *m X' *m W_V.
Proof.
rewrite convert_layerE /= /bias_KV mul1mx; congr (_ + _).
rewrite -trmx_mul -mulmxA -sum_outer; apply: eq_bigr => j _.
by rewrite mul1mx !row_mul /= !addr0.
Qed.

(* Without positions nothing is shifted: the converted biases are the states. *)
Theorem convert_no_positions d d' (l : layer F d d') (b : layer_biases l) p M
    (prompt : 'M_(M, d)) (H_num : forall a, R_num l a = 1%:M)
    (H_den : forall a, R_den l a = 1%:M) :
  convert_layer b p prompt = absorb_layer b p prompt.
Proof.
apply/ffunP => g; rewrite /convert_layer ffunE /shift H_num H_den !mul1mx.
by case: (absorb_layer b p prompt g).
Qed.

(* Such layers exist, whatever the weights: the hypotheses above hold.        *)
Lemma linear_layer_no_positions d d' dk m (W_Q W_K : 'M[F]_(d, dk))
    (W_V : 'M[F]_(d, m)) (rest : 'rV[F]_d -> 'rV[F]_(1 * m) -> 'rV[F]_d')
    (l := linear_layer W_Q W_K W_V rest) a :
  R_num l a = 1%:M /\ R_den l a = 1%:M.
Proof. by []. Qed.
End Library.
