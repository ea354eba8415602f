(* RoPE: rotary position embedding, with rotations as (cos, sin).  Mirrors    *)
(* refimpl/attention/rope.py.                                                 *)
(*                                                                            *)
(*   K                any commutative ring; F any field                       *)
(*   h, e             h pairs of features turn, e features pass through: a    *)
(*                    token is a row x of h + h + e features                  *)
(*   cos, sin         one row of h entries for a position (c, s where they    *)
(*                    are those of one step)                                  *)
(*   l                the layout: Half pairs (i, i + h), Interleaved pairs    *)
(*                    (2 i, 2 i + 1)                                          *)
(*   a, b, p          positions: integers of either sign                      *)
(*   rope_mx          the matrix of the rotation; it acts on columns, so a    *)
(*                    row x becomes x *m (rope_mx ..)^T                       *)
From mathcomp Require Import all_ssreflect fingroup perm all_algebra.
From icl Require Import linear_attention.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Inductive layout := Half | Interleaved.

(* Pairs lie in h + h features: 2 i, 2 i + 1, and the pair of a feature.      *)
Section Pairs.
Variable h : nat.

Lemma even_lt (i : 'I_h) : (i.*2 < h + h)%N.
Proof. by rewrite addnn ltn_double. Qed.

Lemma odd_lt (i : 'I_h) : (i.*2.+1 < h + h)%N.
Proof. by rewrite addnn ltn_Sdouble. Qed.

Lemma pair_lt (j : 'I_(h + h)) : (j./2 < h)%N.
Proof.
rewrite -ltn_double -[h.*2]addnn; apply: leq_ltn_trans (ltn_ord j).
by rewrite -{2}[nat_of_ord j]odd_double_half leq_addl.
Qed.

Definition even_of i := Ordinal (even_lt i).
Definition odd_of i := Ordinal (odd_lt i).
Definition pair_of j := Ordinal (pair_lt j).
End Pairs.

Section Rotate.
Variables (K : comRingType) (h e : nat).

(* The product of arrays, entry by entry.                                     *)
Definition times (x y : 'rV[K]_h) := \row_i (x 0 i * y 0 i).
Local Infix "**" := times (at level 40).

(* reshape (stack [x[:h], x[h:2h]]), and back.                                *)
Definition weave (x : 'rV[K]_(h + h)) : 'rV[K]_(h + h) :=
  \row_j (if odd j then rsubmx x else lsubmx x) 0 (pair_of j).

Definition evens (x : 'rV[K]_(h + h)) : 'rV[K]_h := \row_i x 0 (even_of i).

Definition odds (x : 'rV[K]_(h + h)) : 'rV[K]_h := \row_i x 0 (odd_of i).

Definition interleave (x : 'rV[K]_(h + h + e)) :=
  row_mx (weave (lsubmx x)) (rsubmx x).

Definition deinterleave (x : 'rV[K]_(h + h + e)) :=
  row_mx (row_mx (evens (lsubmx x)) (odds (lsubmx x))) (rsubmx x).

Definition rotate (x : 'rV[K]_(h + h + e)) (cos sin : 'rV[K]_h) (l : layout) :=
  let a := if l is Half then lsubmx (lsubmx x) else evens (lsubmx x) in
  let b := if l is Half then rsubmx (lsubmx x) else odds (lsubmx x) in
  let turned := row_mx (a ** cos - b ** sin) (a ** sin + b ** cos) in
  row_mx (if l is Interleaved then weave turned else turned) (rsubmx x).

Lemma evens_weave x : evens (weave x) = lsubmx x.
Proof.
apply/rowP=> i; rewrite !mxE /= odd_double mxE; congr (x _ (lshift _ _)).
by apply: val_inj; rewrite /= doubleK.
Qed.

Lemma odds_weave x : odds (weave x) = rsubmx x.
Proof.
apply/rowP=> i; rewrite !mxE /= odd_double mxE; congr (x _ (rshift _ _)).
by apply: val_inj; rewrite /= uphalf_double.
Qed.

Lemma weave_split x : weave (row_mx (evens x) (odds x)) = x.
Proof.
apply/rowP=> j; rewrite mxE row_mxKl row_mxKr.
case: ifP => jo; rewrite mxE; congr (x _ _); apply: val_inj => /=;
  by rewrite -[RHS]odd_double_half jo.
Qed.

(* deinterleave undoes interleave.                                            *)
Theorem interleaveK : cancel interleave deinterleave.
Proof.
move=> x; rewrite /deinterleave row_mxKl row_mxKr evens_weave odds_weave.
by rewrite !hsubmxK.
Qed.

(* ... and interleave undoes deinterleave.                                    *)
Theorem deinterleaveK : cancel deinterleave interleave.
Proof.
by move=> x; rewrite /interleave row_mxKl row_mxKr weave_split hsubmxK.
Qed.

(* One permutation carries the half layout into the interleaved one:          *)
(* P rotate(x, half) = rotate(P x, interleaved).                              *)
Theorem rope_layouts x cos sin :
  interleave (rotate x cos sin Half) =
  rotate (interleave x) cos sin Interleaved.
Proof.
by rewrite /interleave /rotate !row_mxKl !row_mxKr evens_weave odds_weave.
Qed.

(* P as a matrix.                                                             *)
Definition source (j : 'I_(h + h)) : 'I_(h + h) :=
  if odd j then rshift h (pair_of j) else lshift h (pair_of j).

Lemma source_inj : injective source.
Proof.
move=> j k /(congr1 val); rewrite /source.
have /= jh := ltn_ord (pair_of j); have /= kh := ltn_ord (pair_of k).
case: ifP; case: ifP => /= ko jo E; apply: val_inj;
  rewrite /= -[LHS]odd_double_half -[RHS]odd_double_half jo ko.
- by move/addnI: E => ->.
- by move: kh; rewrite -E ltnNge leq_addr.
- by move: jh; rewrite E ltnNge leq_addr.
- by rewrite E.
Qed.

Definition interleave_mx : 'M[K]_(h + h + e) :=
  block_mx (perm_mx (perm source_inj)) 0 0 1%:M.

(* interleave multiplies by P ...                                             *)
Theorem interleave_mxE x : interleave x = x *m interleave_mx^T.
Proof.
rewrite -{2}[x]hsubmxK tr_block_mx mul_row_block !trmx0 trmx1 !mulmx0 mulmx1.
rewrite addr0 add0r tr_perm_mx -col_permE; congr row_mx.
apply/rowP=> j; rewrite !mxE permE /source.
by case: ifP => _; rewrite !mxE.
Qed.

(* ... and P is orthogonal.                                                   *)
Theorem interleave_orthogonal : interleave_mx^T *m interleave_mx = 1%:M.
Proof.
rewrite tr_block_mx mulmx_block tr_perm_mx -perm_mxM mulVg perm_mx1.
by rewrite !trmx0 trmx1 !mulmx0 !mul0mx mulmx1 !addr0 add0r -scalar_mx_block.
Qed.

(* The matrix of the rotation, with features beyond h + h left alone.         *)
Definition half_mx (cos sin : 'rV[K]_h) : 'M[K]_(h + h + e) :=
  block_mx (block_mx (diag_mx cos) (- diag_mx sin) (diag_mx sin) (diag_mx cos))
           0 0 1%:M.

Definition rope_mx (l : layout) (cos sin : 'rV[K]_h) : 'M[K]_(h + h + e) :=
  if l is Half then half_mx cos sin
  else interleave_mx *m half_mx cos sin *m interleave_mx^T.

Lemma mul_diag (x y : 'rV[K]_h) : x *m diag_mx y = x ** y.
Proof. by apply/rowP=> i; rewrite mul_mx_diag !mxE. Qed.

(* rotate, written as the program writes it, multiplies by that matrix.       *)
Theorem rotateE x cos sin l : rotate x cos sin l = x *m (rope_mx l cos sin)^T.
Proof.
have half y : rotate y cos sin Half = y *m (half_mx cos sin)^T.
  rewrite -{2}[y]hsubmxK -[in RHS](hsubmxK (lsubmx y)).
  rewrite !tr_block_mx !mul_row_block !trmx0 trmx1 !mulmx0 mulmx1 addr0 add0r.
  by rewrite [(- _)^T]linearN /= !tr_diag_mx mulmxN !mul_diag.
case: l => [|/=]; first exact: half.
have <- : interleave (x *m interleave_mx) = x.
  by rewrite interleave_mxE -mulmxA (mulmx1C interleave_orthogonal) mulmx1.
rewrite -rope_layouts half !interleave_mxE !trmx_mul trmxK !mulmxA.
by rewrite -[_ *m _^T *m interleave_mx]mulmxA interleave_orthogonal mulmx1.
Qed.

(* Turning by two angles after each other.                                    *)
Lemma rope_mxM l c s c' s' : rope_mx l c s *m rope_mx l c' s' =
  rope_mx l (c ** c' - s ** s') (s ** c' + c ** s').
Proof.
have half : half_mx c s *m half_mx c' s' =
    half_mx (c ** c' - s ** s') (s ** c' + c ** s').
  rewrite !mulmx_block !mulmx0 !mul0mx mulmx1 !addr0 add0r.
  rewrite !(mulmxN, mulNmx) !mulmx_diag -!(raddfD, raddfN) /=.
  rewrite [X in - diag_mx X]addrC [X in block_mx _ _ _ (diag_mx X)]addrC.
  exact: erefl.
case: l => //=; rewrite -half !mulmxA.
by rewrite -[_ *m _^T *m interleave_mx]mulmxA interleave_orthogonal mulmx1.
Qed.

Lemma tr_rope_mx l c s : (rope_mx l c s)^T = rope_mx l c (- s).
Proof.
have half : (half_mx c s)^T = half_mx c (- s).
  rewrite /half_mx [diag_mx (- s)]linearN /= opprK !tr_block_mx !trmx0 trmx1.
  by rewrite [(- _)^T]linearN /= !tr_diag_mx.
by case: l => //=; rewrite !trmx_mul trmxK half mulmxA.
Qed.

Lemma rope_mx1 l : rope_mx l (const_mx 1) 0 = 1%:M.
Proof.
have half : half_mx (const_mx 1) 0 = 1%:M.
  by rewrite /half_mx diag_const_mx linear0 oppr0 -!scalar_mx_block.
by case: l => //=; rewrite half mulmx1 (mulmx1C interleave_orthogonal).
Qed.

(* On the circle the matrix is orthogonal, in both layouts.                   *)
Theorem rope_orthogonal l c s (H_circle : c ** c + s ** s = const_mx 1) :
  (rope_mx l c s)^T *m rope_mx l c s = 1%:M.
Proof.
have -> : 1%:M = rope_mx l (c ** c - - s ** s) (- s ** c + c ** s).
  have -> : - s ** c + c ** s = 0.
    by apply/rowP=> i; rewrite !mxE mulNr mulrC addNr.
  have -> : c ** c - - s ** s = const_mx 1.
    by rewrite -H_circle; apply/rowP=> i; rewrite !mxE mulNr opprK.
  by rewrite rope_mx1.
by rewrite tr_rope_mx rope_mxM.
Qed.
End Rotate.
Infix "**" := times (at level 40) : ring_scope.

(* A table of rotations: what the program's tables are, and all that is asked *)
(* of cosines and sines.                                                      *)
Record table (K : comRingType) h := Table {
  cos : int -> 'rV[K]_h;
  sin : int -> 'rV[K]_h;
  cosD : forall a b, cos (a + b) = cos a ** cos b - sin a ** sin b;
  sinD : forall a b, sin (a + b) = sin a ** cos b + cos a ** sin b;
  cosN : forall a, cos (- a) = cos a;
  sinN : forall a, sin (- a) = - sin a;
  cos0 : cos 0 = const_mx 1;
  sin0 : sin 0 = 0 }.

Lemma dot_turned (K : comRingType) d (A B : 'M[K]_d) (x y : 'rV[K]_d) :
  x *m A^T *m (y *m B^T)^T = x *m (y *m (A^T *m B)^T)^T.
Proof. by rewrite !trmx_mul !trmxK !mulmxA. Qed.

Section Relative.
Variables (K : comRingType) (h e : nat) (T : table K h) (l : layout).
Implicit Types (a b : int) (x y : 'rV[K]_(h + h + e)).

(* rotate at a position, and its matrix.                                      *)
Definition rotate_at a x := rotate x (cos T a) (sin T a) l.

Definition R a : 'M[K]_(h + h + e) := rope_mx e l (cos T a) (sin T a).

(* At every position of a table, rotate is multiplication by R_a.             *)
Lemma rotate_atE a x : rotate_at a x = x *m (R a)^T.
Proof. exact: rotateE. Qed.

(* R_(a+b) = R_a R_b.                                                         *)
Theorem R_add a b : R (a + b) = R a *m R b.
Proof. by rewrite /R cosD sinD rope_mxM. Qed.

(* R_a^T = R_(-a).                                                            *)
Theorem R_tr a : (R a)^T = R (- a).
Proof. by rewrite /R cosN sinN tr_rope_mx. Qed.

(* R_0 turns nothing.                                                         *)
Theorem R_0 : R 0 = 1%:M.
Proof. by rewrite /R cos0 sin0 rope_mx1. Qed.

Lemma R_sub a b : (R a)^T *m R b = R (b - a).
Proof. by rewrite [b - a]addrC R_add R_tr. Qed.

(* R_b R_a = R_(a + b), R_(-a) undoes R_a, and (R_a x).(R_b y) is             *)
(* x.(R_(b - a) y).                                                           *)
Theorem rope_relative a b x y :
  [/\ rotate_at b (rotate_at a x) = rotate_at (a + b) x,
      rotate_at (- a) (rotate_at a x) = x
    & rotate_at a x *m (rotate_at b y)^T = x *m (rotate_at (b - a) y)^T].
Proof.
rewrite !rotate_atE; split.
- by rewrite [a + b]addrC R_add trmx_mul mulmxA.
- by rewrite -mulmxA -trmx_mul -R_add addNr R_0 trmx1 mulmx1.
- by rewrite dot_turned R_sub.
Qed.

(* So it depends on b - a only.                                               *)
Corollary rope_difference a b a' b' x y (H_distance : b - a = b' - a') :
  rotate_at a x *m (rotate_at b y)^T = rotate_at a' x *m (rotate_at b' y)^T.
Proof.
have [_ _ ->] := rope_relative a b x y; rewrite H_distance.
by have [_ _ ->] := rope_relative a' b' x y.
Qed.
End Relative.

(* Powers of points of the circle.                                            *)
Section Power.
Variable K : comRingType.
Implicit Types z w : K * K.

(* (x, y) stands for x + i y.                                                 *)
Definition cmul z w := (z.1 * w.1 - z.2 * w.2, z.1 * w.2 + z.2 * w.1).
Definition conj z := (z.1, - z.2).

(* The p-th power: repeated product, and for p < 0 its conjugate.             *)
Definition pow z (p : int) : K * K :=
  match p with
  | Posz n => iter n (cmul z) (1, 0)
  | Negz n => conj (iter n.+1 (cmul z) (1, 0))
  end.

(* The program's recursion, by repeated squaring.  Its depth is bounded by    *)
(* [depth]; p itself is enough.                                               *)
Fixpoint square_power (c s : K) (depth p : nat) : K * K :=
  if depth is depth'.+1 then
    if p == 0%N then (1, 0) else
    let: (x, y) := square_power c s depth' p./2 in
    let: (x, y) := (x * x - y * y, x * y + x * y) in
    if odd p then (x * c - y * s, x * s + y * c) else (x, y)
  else (1, 0).

Definition power (c s : K) (p : int) : K * K :=
  match p with
  | Posz n => square_power c s n n
  | Negz n => let: (x, y) := square_power c s n.+1 n.+1 in (x, - y)
  end.

Lemma cmulC : commutative cmul.
Proof.
move=> [x y] [x' y']; congr (_, _) => /=; first by rewrite mulrC [y * _]mulrC.
by rewrite addrC mulrC [x * _]mulrC.
Qed.

Lemma cmulA : associative cmul.
Proof.
move=> [x y] [x' y'] [x'' y'']; congr (_, _) => /=;
  rewrite mulrBr mulrDr mulrBl mulrDl !mulrA ?opprD !addrA;
  by rewrite [LHS]addrAC; congr (_ + _); rewrite addrAC.
Qed.

Lemma cmul1 z : cmul (1, 0) z = z.
Proof. by case: z => x y; rewrite /cmul /= !mul0r !mul1r subr0 addr0. Qed.

Lemma conjM z w : conj (cmul z w) = cmul (conj z) (conj w).
Proof.
congr (_, _) => /=; first by rewrite mulrNN.
by rewrite opprD mulrN mulNr.
Qed.

Lemma iter_cmulD z n m : iter (n + m) (cmul z) (1, 0) =
  cmul (iter n (cmul z) (1, 0)) (iter m (cmul z) (1, 0)).
Proof. by elim: n => [|n IH]; rewrite ?cmul1 // addSn !iterS IH cmulA. Qed.

Lemma half_lt p : p != 0%N -> (p./2 < p)%N.
Proof.
case: p => // p _; rewrite ltnS /= uphalf_half.
by rewrite -[X in (_ <= X)%N]odd_double_half leq_add2l -addnn leq_addr.
Qed.

Lemma square_powerE c s depth p : (p <= depth)%N ->
  square_power c s depth p = iter p (cmul (c, s)) (1, 0).
Proof.
elim: depth p => [|depth IH] p /=; first by case: p.
case: eqP => [->|/eqP p0] // lep.
have -> : iter p (cmul (c, s)) (1, 0) = cmul (iter (odd p) (cmul (c, s)) (1, 0))
    (cmul (iter p./2 (cmul (c, s)) (1, 0)) (iter p./2 (cmul (c, s)) (1, 0))).
  by rewrite -!iter_cmulD addnn odd_double_half.
rewrite IH; last by rewrite -ltnS (leq_trans (half_lt p0)).
case: (iter p./2 _ _) => x y.
have -> : cmul (x, y) (x, y) = (x * x - y * y, x * y + x * y).
  by rewrite /cmul /= [y * x]mulrC.
by case: odd; rewrite /= ?cmul1 // [cmul (c, s) (1, 0)]cmulC cmul1 cmulC.
Qed.

(* Repeated squaring computes the p-th power, for p of either sign.           *)
Theorem power_eq_pow c s p : power c s p = pow (c, s) p.
Proof. by case: p => n; rewrite /power square_powerE //; case: iter. Qed.

(* On the circle, exponents add.                                              *)
Section Circle.
Variables (z : K * K) (H_circle : z.1 ^+ 2 + z.2 ^+ 2 = 1).

Lemma cmul_conj : cmul z (conj z) = (1, 0).
Proof.
congr (_, _) => /=; first by rewrite mulrN opprK -!expr2.
by rewrite mulrN mulrC addNr.
Qed.

Lemma powS p : pow z (1 + p) = cmul z (pow z p).
Proof.
case: p => n //; have -> : 1 + Negz n = - n%:Z.
  by rewrite NegzE -addn1 PoszD opprD addrC addrNK.
rewrite /= conjM cmulA cmul_conj cmul1.
by case: n => [|n] //; rewrite /= /conj oppr0.
Qed.

(* Exponents add, ...                                                         *)
Theorem powD a b : pow z (a + b) = cmul (pow z a) (pow z b).
Proof.
elim/int_rec: a => [|n IH|n IH]; first by rewrite add0r cmul1.
  by rewrite intS -addrA !powS IH cmulA.
have inv p : pow z p = cmul (conj z) (pow z (1 + p)).
  by rewrite powS cmulA [cmul (conj z) z]cmulC cmul_conj cmul1.
rewrite inv [pow z (- _)]inv !addrA -addn1 PoszD opprD [1 + _]addrC addrNK.
by rewrite IH cmulA.
Qed.

(* ... and a change of sign is the conjugate.                                 *)
Theorem powN p : pow z (- p) = conj (pow z p).
Proof.
case: p => [[|n]|n]; first by rewrite /= /conj oppr0.
  by rewrite -NegzE.
by rewrite NegzE opprK /=; case: (cmul _ _) => x y; rewrite /conj /= opprK.
Qed.
End Circle.
End Power.

Section Tables.
Variables (K : comRingType) (h : nat).

(* power_table: cos + i sin = (c + i s)^p.                                    *)
Section PowerTable.
Variables (c s : 'rV[K]_h) (H_circle : c ** c + s ** s = const_mx 1).

Lemma on_circle i : (c 0 i, s 0 i).1 ^+ 2 + (c 0 i, s 0 i).2 ^+ 2 = 1.
Proof. by move/rowP/(_ i): H_circle; rewrite !mxE. Qed.

Definition power_cos p := \row_i (power (c 0 i) (s 0 i) p).1.
Definition power_sin p := \row_i (power (c 0 i) (s 0 i) p).2.

Lemma power_cosD a b : power_cos (a + b) =
  power_cos a ** power_cos b - power_sin a ** power_sin b.
Proof.
by apply/rowP=> i; rewrite !mxE !power_eq_pow powD //; apply: on_circle.
Qed.

Lemma power_sinD a b : power_sin (a + b) =
  power_sin a ** power_cos b + power_cos a ** power_sin b.
Proof.
apply/rowP=> i; rewrite !mxE !power_eq_pow powD; last exact: on_circle.
by rewrite addrC.
Qed.

Lemma power_cosN a : power_cos (- a) = power_cos a.
Proof. by apply/rowP=> i; rewrite !mxE !power_eq_pow powN. Qed.

Lemma power_sinN a : power_sin (- a) = - power_sin a.
Proof. by apply/rowP=> i; rewrite !mxE !power_eq_pow powN. Qed.

Lemma power_cos0 : power_cos 0 = const_mx 1.
Proof. by apply/rowP=> i; rewrite !mxE. Qed.

Lemma power_sin0 : power_sin 0 = 0.
Proof. by apply/rowP=> i; rewrite !mxE. Qed.

(* On the circle power_table is a table of rotations.                         *)
Definition power_table : table K h := Table power_cosD power_sinD
  power_cosN power_sinN power_cos0 power_sin0.
End PowerTable.

(* angle_table: cos (p theta_i), sin (p theta_i), for any cosine and sine of  *)
(* any group of angles that satisfy the addition theorems.                    *)
Section AngleTable.
Variables (angle : zmodType) (cosine sine : angle -> K) (theta : 'I_h -> angle).
Hypothesis H_cosD : forall x y,
  cosine (x + y) = cosine x * cosine y - sine x * sine y.
Hypothesis H_sinD : forall x y,
  sine (x + y) = sine x * cosine y + cosine x * sine y.
Hypothesis H_cosN : forall x, cosine (- x) = cosine x.
Hypothesis H_sinN : forall x, sine (- x) = - sine x.
Hypothesis H_cos0 : cosine 0 = 1.
Hypothesis H_sin0 : sine 0 = 0.

Definition angle_cos p := \row_i cosine (theta i *~ p).
Definition angle_sin p := \row_i sine (theta i *~ p).

(* Then angle_table is a table of rotations.                                  *)
Definition angle_table : table K h.
Proof.
exists angle_cos angle_sin => *; apply/rowP=> i; rewrite !mxE.
- by rewrite mulrzDl H_cosD.
- by rewrite mulrzDl H_sinD.
- by rewrite mulrNz H_cosN.
- by rewrite mulrNz H_sinN.
- by rewrite mulr0z.
- by rewrite mulr0z.
Defined.
End AngleTable.
End Tables.

(* The addition theorems are satisfiable: angles that are whole multiples of  *)
(* the angle of any point z of the circle, of any commutative ring.           *)
Example whole_angles (K : comRingType) (z : K * K)
    (H_circle : z.1 ^+ 2 + z.2 ^+ 2 = 1) h (theta : 'I_h -> int) : table K h.
Proof.
apply: (@angle_table _ _ _ (fun p => (pow z p).1) (fun p => (pow z p).2) theta).
- by move=> p p'; rewrite powD.
- by move=> p p'; rewrite powD //= addrC.
- by move=> p; rewrite powN.
- by move=> p; rewrite powN.
- by [].
- by [].
Defined.

(* The rotations of a table, in either layout, are what attention asks for.   *)
Section Rope.
Variables (F : fieldType) (h e : nat) (T : table F h) (l : layout).

Definition rope : rotation F (h + h + e) :=
  Rotation (R_add e T l) (R_tr e T l) (R_0 e T l).

(* Rope.__call__ on tokens from position p on turns row t by R_(p+t).         *)
Theorem rope_turned n p (x : 'M[F]_(n, h + h + e)) :
  \matrix_(t < n) rotate_at T l (p + t%:Z) (row t x) = turned rope p x.
Proof. by apply/row_matrixP=> t; rewrite !rowK rotate_atE. Qed.
End Rope.

(* circle_point t lies on the circle.  MathComp's x / 0 is 0; the program     *)
(* refuses where 1 + t^2 = 0, and so does the theorem.                        *)
Section CirclePoint.
Variables (F : fieldType).
Implicit Type t : F.

Definition circle_point t := ((1 - t * t) / (1 + t * t), (t + t) / (1 + t * t)).

Theorem circle_point_on_circle t (H_t : 1 + t * t != 0) :
  (circle_point t).1 ^+ 2 + (circle_point t).2 ^+ 2 = 1.
Proof.
rewrite !expr_div_n -mulrDl; apply: (canLR (mulfK _)); rewrite ?expf_neq0 //.
have -> : (t + t) ^+ 2 = t * t *+ 4 by rewrite -mulr2n exprMn_n expr2.
by rewrite mul1r -[t * t in X in _ + X]mul1r -subr_sqrDB addrC subrK.
Qed.
End CirclePoint.

(* In an ordered field every t gives a point, so power_table has instances.   *)
Lemma circle_point_real (F : realFieldType) (t : F) : 1 + t * t != 0.
Proof. by rewrite lt0r_neq0 // ltr_paddr ?ltr01 // -expr2 sqr_ge0. Qed.

Section CircleRow.
Variables (F : fieldType) (h : nat) (t : 'rV[F]_h).
Hypothesis H_t : forall i, 1 + t 0 i * t 0 i != 0.

Lemma circle_row :
  let c := \row_i (circle_point (t 0 i)).1 in
  let s := \row_i (circle_point (t 0 i)).2 in c ** c + s ** s = const_mx 1.
Proof.
by apply/rowP=> i; rewrite !mxE -!expr2; apply: circle_point_on_circle.
Qed.
End CircleRow.

(* So RoPE is there over the rationals for every h, e, layout and parameter.  *)
Definition rational_rope h e (t : 'rV[rat]_h) (l : layout) :
    rotation rat_fieldType (h + h + e) :=
  rope e (power_table (circle_row (fun i => circle_point_real (t 0 i)))) l.
