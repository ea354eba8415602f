(* Feature maps: which of them let a prompt be shifted under RoPE before the  *)
(* kernel, and the kernels of those that are polynomials.  Mirrors            *)
(* refimpl/attention/feature_maps.py and, for maps with directions omega,     *)
(* refimpl/attention/random_features.py.                                      *)
(*                                                                            *)
(*   x, q, k          tokens, as rows of d entries; R_p x is x *m (R p)^T     *)
(*   omega            directions, the rows of a D x d matrix                  *)
(*   phi omega x      features, a row of r entries                            *)
(*   R                rotations, of rope.v for one                            *)
(*   p                the position at which a text is read                    *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory.
Local Open Scope ring_scope.

(* ------------------------------------------------------------------------- *)
(* Maps that see a token only through omega x and |x|^2 (and the directions   *)
(* only through their scalar products, which includes their norms): FAVOR+,   *)
(* trigonometric, hyperbolic, FAVOR++, orthogonal and simplex features, and   *)
(* landmarks of a kernel of scalar products.  f is any function.              *)
Section Directions.
Variables (F : fieldType) (D d r : nat).
Variable f : 'M[F]_D -> 'rV[F]_D -> F -> 'rV[F]_r.
Implicit Types (omega : 'M[F]_(D, d)) (x : 'rV[F]_d).

Definition directional omega x : 'rV[F]_r :=
  f (omega *m omega^T) (x *m omega^T) ((x *m x^T) 0 0).

(* phi_omega (R x) = phi_(omega R) (x): the directions, rows of omega, become *)
(* R^T omega_i.                                                               *)
Theorem rotation_covariance omega x (R : 'M[F]_d) (H_R : R^T *m R = 1%:M) :
  directional omega (x *m R^T) = directional (omega *m R) x.
Proof.
have gram : omega *m R *m (omega *m R)^T = omega *m omega^T.
  by rewrite trmx_mul !mulmxA -[omega *m R *m _]mulmxA (mulmx1C H_R) mulmx1.
have norm : x *m R^T *m (x *m R^T)^T = x *m x^T.
  by rewrite trmx_mul trmxK !mulmxA -[x *m _ *m R]mulmxA H_R mulmx1.
by rewrite /directional gram norm trmx_mul mulmxA.
Qed.
End Directions.

(* ------------------------------------------------------------------------- *)
(* What that is good for.  phi is any covariant map, so also a pair (phi_q,   *)
(* phi_k) of them.                                                            *)
Section Shift.
Variables (F : fieldType) (D d r m : nat) (R : rotation F d).
Variables phi_q phi_k : 'M[F]_(D, d) -> 'rV[F]_d -> 'rV[F]_r.

Definition covariant (phi : 'M[F]_(D, d) -> 'rV[F]_d -> 'rV[F]_r) :=
  forall omega x a, phi omega (x *m (R a)^T) = phi (omega *m R a) x.

Hypothesis H_q : covariant phi_q.
Hypothesis H_k : covariant phi_k.
Implicit Types (omega : 'M[F]_(D, d)) (b : state F r m).

(* RoPE before the kernel: row t is phi (R_(p+t) x_t).                        *)
Definition before phi omega (p : int) n (x : 'M[F]_(n, d)) : 'M[F]_(n, r) :=
  \matrix_(t < n) phi omega (row t (turned R p x)).

(* The state after a text, and attention over a text.                         *)
Definition absorb omega p b n (k : 'M[F]_(n, d)) (v : 'M[F]_(n, m)) :=
  let fk := before phi_k omega p k in state_after fk fk v b.1 b.2.

Definition attend omega p b n (q k : 'M[F]_(n, d)) (v : 'M[F]_(n, m)) P
    normalise :=
  let fq := before phi_q omega p q in let fk := before phi_k omega p k in
  linear_attention fq fk fq fk v b.1 b.2 P normalise.

Definition attend_num omega p b n (q k : 'M[F]_(n, d)) (v : 'M[F]_(n, m)) P :=
  num (before phi_q omega p q) (before phi_k omega p k) v b.1 P.

Definition attend_den omega p b n (q k : 'M[F]_(n, d)) P :=
  den (before phi_q omega p q) (before phi_k omega p k) b.2 P.

(* Directions turned by R_j do what reading j positions further on does.      *)
Lemma before_shift phi omega p j n (x : 'M[F]_(n, d)) : covariant phi ->
  before phi omega (p + j) x = before phi (omega *m R j) p x.
Proof.
move=> c; apply/row_matrixP=> t; rewrite [LHS]rowK [RHS]rowK.
by rewrite turned_add row_mul c.
Qed.

Lemma before_cat phi omega p M n (x : 'M[F]_(M, d)) (y : 'M[F]_(n, d)) :
  before phi omega p (col_mx x y) =
  col_mx (before phi omega p x) (before phi omega (p + M%:Z) y).
Proof.
apply/row_matrixP=> t; rewrite rowK turned_cat.
by case: (split_ordP t) => {}t ->; rewrite ?(rowKu, rowKd) [RHS]rowK.
Qed.

(* The state of a text read j positions further on is the state of the text   *)
(* with the directions turned; so S and z of a prompt, left alone, are those  *)
(* of the prompt at positions shifted by -j, once omega is turned by R_j.     *)
Theorem shift_state omega p j b n (k : 'M[F]_(n, d)) (v : 'M[F]_(n, m)) :
  absorb omega (p + j) b k v = absorb (omega *m R j) p b k v.
Proof. by rewrite /absorb before_shift. Qed.

Corollary shift_back omega p j b n (k : 'M[F]_(n, d)) (v : 'M[F]_(n, m)) :
  absorb omega p b k v = absorb (omega *m R j) (p - j) b k v.
Proof. by rewrite -shift_state subrK. Qed.

(* Numerators and denominators, hence outputs, under any mask and from any    *)
(* state; MathComp's x / 0 is 0, and the denominators are the same.           *)
Theorem shift_output omega p j b n (q k : 'M[F]_(n, d)) (v : 'M[F]_(n, m)) P t :
  attend_num omega (p + j) b q k v P t =
    attend_num (omega *m R j) p b q k v P t /\
  attend_den omega (p + j) b q k P t = attend_den (omega *m R j) p b q k P t.
Proof. by rewrite /attend_num /attend_den !before_shift. Qed.

Corollary shift_attend omega p j b n (q k : 'M[F]_(n, d)) (v : 'M[F]_(n, m)) P
    normalise :
  attend omega (p + j) b q k v P normalise =
  attend (omega *m R j) p b q k v P normalise.
Proof. by rewrite /attend !before_shift. Qed.

Section Prompts.
Variables (omega : 'M[F]_(D, d)) (p : int) (b : state F r m) (M N : nat).
Variables (k1 : 'M[F]_(M, d)) (v1 : 'M[F]_(M, m)).
Variables (k2 : 'M[F]_(N, d)) (v2 : 'M[F]_(N, m)).

(* Conversion: attention over prompt and input is, for the input, attention   *)
(* over the input alone, read from where the prompt began, from the prompt's  *)
(* state as it is, with the directions turned by R_M.                         *)
Theorem covariant_conversion n (q1 : 'M[F]_(M, d)) (q k : 'M[F]_(n, d))
    (v : 'M[F]_(n, m)) P normalise (H_P : (P <= M)%N) :
  attend omega p b (col_mx q1 q) (col_mx k1 k) (col_mx v1 v) P normalise =
  col_mx (attend omega p b q1 k1 v1 P normalise)
    (attend (omega *m R M) p (absorb omega p b k1 v1) q k v 0 normalise).
Proof. by rewrite -shift_attend /attend !before_cat split_invariance. Qed.

(* The two sides refuse alike.                                                *)
Theorem covariant_defined n (q1 : 'M[F]_(M, d)) (q k : 'M[F]_(n, d)) P
    normalise (H_P : (P <= M)%N) :
  defined (before phi_q omega p (col_mx q1 q))
    (before phi_k omega p (col_mx k1 k)) b.2 P normalise =
  defined (before phi_q omega p q1) (before phi_k omega p k1) b.2 P normalise
  && defined (before phi_q (omega *m R M) p q) (before phi_k (omega *m R M) p k)
       (absorb omega p b k1 v1).2 0 normalise.
Proof. by rewrite -!before_shift // !before_cat; apply: split_defined. Qed.

(* Two prompts stack: the second, read from p again with the directions       *)
(* turned by R_M, on top of the first, leaves the state of both, and the      *)
(* directions are then turned by R_(M+N).                                     *)
Theorem covariant_stack :
  absorb omega p b (col_mx k1 k2) (col_mx v1 v2) =
    absorb (omega *m R M) p (absorb omega p b k1 v1) k2 v2 /\
  omega *m R M *m R N = omega *m R (M + N)%N.
Proof.
rewrite -shift_state /absorb before_cat split_state; split=> //.
by rewrite -mulmxA -turnD PoszD.
Qed.
End Prompts.
End Shift.

(* Directional maps are covariant for every rotation: the hypotheses above    *)
(* hold for all of them.                                                      *)
Corollary directional_covariant (F : fieldType) D d r (R : rotation F d)
    (f : 'M[F]_D -> 'rV[F]_D -> F -> 'rV[F]_r) : covariant R (directional f).
Proof. by move=> omega x a; apply: rotation_covariance; apply: turnK. Qed.

(* ------------------------------------------------------------------------- *)
(* Maps that work on each entry have no directions to turn.  Then no function *)
(* of the state, linear or not, shifts it: two prompts of one token with the  *)
(* same state, whose states after a shift differ.  (With directions in front, *)
(* as square (omega x), they are directional: the directions then turn.)      *)
Section NoShift.
Variables (F : fieldType).

Definition token_state (phi : 'rV[F]_2 -> 'rV[F]_2) k : state F 2 1 :=
  state_after (phi k) (phi k) (1%:M : 'M_1) 0 0.

Definition shiftable phi (R : 'M[F]_2) :=
  exists g, forall k, token_state phi (k *m R^T) = g (token_state phi k).

Lemma not_shiftable phi R k k' :
  phi k = phi k' -> phi (k *m R^T) != phi (k' *m R^T) -> ~ shiftable phi R.
Proof.
move=> E /eqP N [g H]; apply: N; have := H k; rewrite /token_state E.
rewrite -[in RHS]/(token_state phi k') -H => -[_].
by rewrite !big_ord1 !add0r !row_id => /trmx_inj.
Qed.

(* One pair turned by (c, s): (a, b) -> (a c - b s, a s + b c).               *)
Definition turn2 (c s : F) : 'M[F]_2 := \matrix_(i, j)
  (if i == j then c else if i == 0 then - s else s).

Definition row2 (a b : F) : 'rV[F]_2 := \row_j (if j == 0 then a else b).

Lemma turn2E c s a b : row2 a b *m (turn2 c s)^T =
  row2 (a * c - b * s) (a * s + b * c).
Proof.
apply/rowP=> j; rewrite !mxE big_ord_recl big_ord1 !mxE /=.
by case: (unliftP 0 j) => [{}j|] ->; rewrite ?ord1 //= mulrN.
Qed.

(* phi(x) = x^2, entry by entry: not in any field of characteristic other     *)
(* than 2, for any rotation but quarter turns.                                *)
Definition square (x : 'rV[F]_2) : 'rV[F]_2 := \row_j x 0 j ^+ 2.

Theorem square_not_shiftable c s (H_2 : 2%:R != 0 :> F) (H_c : c != 0)
    (H_s : s != 0) : ~ shiftable square (turn2 c s).
Proof.
apply: (@not_shiftable _ _ (row2 1 1) (row2 1 (- 1))).
  by apply/rowP=> j; rewrite !mxE; case: ifP; rewrite ?sqrrN.
apply/eqP; rewrite !turn2E => /rowP/(_ 0); rewrite !mxE /= !mul1r !mulN1r opprK.
move/eqP; rewrite eq_sym -subr_eq0 subr_sqrDB -mulr_natr (natrM _ 2 2).
by rewrite !mulf_eq0 (negPf H_2) (negPf H_c) (negPf H_s).
Qed.
End NoShift.

(* relu: not in any ordered field, for the rotation by (3/5, 4/5).            *)
Definition relu (F : realFieldType) (x : 'rV[F]_2) : 'rV[F]_2 :=
  \row_j Num.max (x 0 j) 0.

Theorem relu_not_shiftable (F : realFieldType) :
  ~ shiftable (@relu F) (turn2 (3%:R / 5%:R) (4%:R / 5%:R)).
Proof.
apply: (@not_shiftable _ _ _ (row2 (- 1) 0) (row2 (- 1) (- 1))).
  apply/rowP=> j; rewrite !mxE; case: ifP => // _.
  by rewrite max_r ?max_r ?lerN10.
rewrite !turn2E; apply/eqP => /rowP/(_ 0); rewrite !mxE /= mul0r subr0 !mulN1r.
rewrite opprK -mulNr -mulrDl (addrC (- _)) -(natrB _ (isT : 3 <= 4)%N) div1r.
rewrite max_r ?max_l ?invr_ge0 ?mulNr ?oppr_le0 ?divr_ge0 ?ler0n //.
by move/esym/eqP; rewrite invr_eq0 pnatr_eq0.
Qed.

(* ------------------------------------------------------------------------- *)
(* Kernels of polynomial maps.                                                *)
Section Kernels.
Variables (K : comRingType) (d : nat).

Definition dot n (x y : 'rV[K]_n) : K := (x *m y^T) 0 0.

Lemma dotC n (x y : 'rV[K]_n) : dot x y = dot y x.
Proof. by rewrite /dot -[x *m _]trmxK trmx_mul trmxK mxE. Qed.

Lemma dotZ n c (x y : 'rV[K]_n) : dot (c *: x) y = c * dot x y.
Proof. by rewrite /dot -scalemxAl mxE. Qed.

Lemma dot1 : dot (1%:M : 'rV[K]_1) 1%:M = 1.
Proof. by rewrite /dot trmx1 mulmx1 mxE. Qed.

(* vec(x y^T)                                                                 *)
Definition outer n l (x : 'rV[K]_n) (y : 'rV[K]_l) : 'rV[K]_(n * l) :=
  mxvec (x^T *m y).

Lemma dot_row_mx n l (x x' : 'rV[K]_n) (y y' : 'rV[K]_l) :
  dot (row_mx x y) (row_mx x' y') = dot x x' + dot y y'.
Proof. by rewrite /dot tr_row_mx mul_row_col mxE. Qed.

Lemma dot_outer n l (x x' : 'rV[K]_n) (y y' : 'rV[K]_l) :
  dot (outer x y) (outer x' y') = dot x x' * dot y y'.
Proof.
rewrite /dot /outer mxvec_dotmul !mulmxA -[_ *m y' *m _]mulmxA.
have -> : y' *m y^T = (y *m y'^T)^T by rewrite trmx_mul trmxK.
by rewrite [LHS]mxE big_ord1 [_^T 0 0]mxE.
Qed.

(* polynomial(p): [1, x] (x) ... (x) [1, x]; as wide as (d + 1)^p.            *)
Fixpoint width p := if p is p'.+1 then (width p' * (1 + d))%N else 1%N.

Fixpoint polynomial p (x : 'rV[K]_d) : 'rV[K]_(width p) :=
  if p is p'.+1 then outer (polynomial p' x) (row_mx 1%:M x) else 1%:M.

(* phi(q).phi(k) = (1 + q.k)^p                                                *)
Theorem polynomial_kernel p q k :
  dot (polynomial p q) (polynomial p k) = (1 + dot q k) ^+ p.
Proof.
elim: p => [|p IH] /=; first exact: dot1.
by rewrite dot_outer dot_row_mx IH dot1 exprSr.
Qed.
End Kernels.

Section Taylor.
Variables (F : fieldType) (d : nat).
Implicit Types (q k x : 'rV[F]_d) (scale : F).

(* taylor2_pair.  MathComp's x / 0 is 0; the program refuses to divide by 2   *)
(* where 2 = 0, and so does the theorem.                                      *)
Definition taylor2_q scale x := row_mx (row_mx (1%:M : 'rV_1) (scale *: x))
  ((scale * scale / 2%:R) *: outer x x).

Definition taylor2_k x := row_mx (row_mx (1%:M : 'rV_1) x) (outer x x).

(* phi_q(q).phi_k(k) = 1 + u + u^2 / 2 with u = scale q.k                     *)
Theorem taylor2_pair_kernel scale q k (H_2 : 2%:R != 0 :> F) :
  let u := scale * dot q k in
  dot (taylor2_q scale q) (taylor2_k k) = 1 + u + u ^+ 2 / 2%:R.
Proof.
rewrite /= !dot_row_mx !dotZ dot_outer dot1 -!expr2 exprMn.
by rewrite [scale ^+ 2 / _ * _]mulrAC.
Qed.

(* taylor2: [1, x / d^(1/4), vec(x x^T) / (2 d)^(1/2)]; the roots, which need *)
(* real numbers, are given.                                                   *)
Definition taylor2 (root4 root_2d : F) x :=
  row_mx (row_mx (1%:M : 'rV_1) (root4^-1 *: x)) (root_2d^-1 *: outer x x).

(* phi(q).phi(k) = 1 + u + u^2 / 2 with u = q.k / d^(1/2)                     *)
Theorem taylor2_kernel (root4 root_2d : F) q k (H_2d : 2%:R * d%:R != 0 :> F)
    (H_root4 : root4 ^+ 4 = d%:R) (H_root_2d : root_2d ^+ 2 = 2%:R * d%:R) :
  let u := dot q k / root4 ^+ 2 in
  dot (taylor2 root4 root_2d q) (taylor2 root4 root_2d k) =
  1 + u + u ^+ 2 / 2%:R.
Proof.
rewrite /= !dot_row_mx !dotZ ![dot _ (_ *: _)]dotC !dotZ dot_outer dot1.
rewrite !mulrA -!invfM -!expr2 [dot k q]dotC H_root_2d -H_root4.
have E (c y : F) : (2%:R * c)^-1 * y * y = y ^+ 2 / c / 2%:R.
  by rewrite invfM -mulrA -expr2 mulrC [2%:R^-1 * _]mulrC mulrA.
by rewrite E [root4 ^- 2 * _]mulrC expr_div_n -exprM.
Qed.
End Taylor.

(* The roots exist not only in the reals: in GF(7), for d = 1, they are 1 and *)
(* 3.                                                                         *)
Example taylor2_roots : let F := 'F_7 in
  [/\ 2%:R * 1%:R != 0 :> F, 1 ^+ 4 = 1%:R :> F & 3%:R ^+ 2 = 2%:R * 1%:R :> F].
Proof. by split=> //; apply: val_inj. Qed.
