(* Random features: estimates of the kernel SM(x, y) = e(x.y), that they are  *)
(* unbiased, and their mean squared errors, for trigonometric, positive and   *)
(* hyperbolic features.  Mirrors refimpl/attention/random_features.py.        *)
(*                                                                            *)
(*   e            an exponential, as in attention.v, from R to F              *)
(*   E            an expectation: any linear functional on the integrable     *)
(*                functions of a chance t, with E 1 = 1.  Positivity is not   *)
(*                used                                                        *)
(*   integrable   which functions have an expectation: a linear space with    *)
(*                the constants.  What the theorems need to be integrable is  *)
(*                in [normal] and [independent]: exponentials of a direction  *)
(*                and products of two, so the real normal law is no exception *)
(*   w i t        the random direction omega_i, i < r, in R^d                 *)
(*   half_sq x    |x|^2 / 2                                                   *)
(*   normal       E e(w_i.u) = e(|u|^2 / 2) for all u: of the law N(0, I),    *)
(*                only its moment generating function is used                 *)
(*   independent  E of products is the product of E's, for exponentials of    *)
(*                two different directions                                    *)
(*   s            r^(-1/2), or (2r)^(-1/2) for hyperbolic features            *)
(*   mse E X a    E (X - a)^2                                                 *)
(*                                                                            *)
(* That the real normal law has these two properties is textbook, and is a    *)
(* hypothesis here.  MathComp-Analysis, as packaged for this Coq (0.6.0), has *)
(* no Gaussian integral and rests on three axioms, so it is not used.  The    *)
(* hypotheses are met, for all r and d, by a discrete Gaussian: directions    *)
(* over a finite field with density e(-|w|^2 / 2), values in another field.   *)
(* It has no positive weights, which nothing here needs.                      *)
(* MathComp's x / 0 is 0: r and 2 are != 0 by hypothesis, e never is.         *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention attention.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Record expectation (T : Type) (F : fieldType) := Expectation {
  E :> (T -> F) -> F;
  integrable : (T -> F) -> Prop;
  int_eq : forall X Y, X =1 Y -> integrable X -> integrable Y;
  intD : forall X Y, integrable X -> integrable Y ->
    integrable (fun w => X w + Y w);
  intZ : forall a X, integrable X -> integrable (fun w => a * X w);
  int1 : integrable (fun=> 1);
  E_eq : forall X Y, X =1 Y -> E X = E Y;
  ED : forall X Y, integrable X -> integrable Y ->
    E (fun w => X w + Y w) = E X + E Y;
  EZ : forall a X, integrable X -> E (fun w => a * X w) = a * E X;
  E1 : E (fun=> 1) = 1 }.

Section Expectation.
Variables (T : Type) (F : fieldType) (E : expectation T F).

Lemma int_const a : integrable E (fun=> a).
Proof. by apply: int_eq (intZ a (int1 E)) => w; rewrite mulr1. Qed.

Lemma E_const a : E (fun=> a) = a.
Proof.
rewrite -{2}[a]mulr1 -(E1 E) -(EZ a (int1 E)).
by apply: E_eq => w; rewrite mulr1.
Qed.

Lemma int_sum (I : Type) (s : seq I) (X : I -> T -> F) :
  (forall i, integrable E (X i)) ->
  integrable E (fun w => \sum_(i <- s) X i w).
Proof.
move=> H; elim: s => [|i s IH].
  by apply: int_eq (int_const 0) => w; rewrite big_nil.
by apply: int_eq (intD (H i) IH) => w; rewrite big_cons.
Qed.

Lemma E_sum (I : Type) (s : seq I) (X : I -> T -> F) :
  (forall i, integrable E (X i)) ->
  E (fun w => \sum_(i <- s) X i w) = \sum_(i <- s) E (X i).
Proof.
move=> H; elim: s => [|i s IH].
  by rewrite big_nil -[RHS]E_const; apply: E_eq => w; rewrite big_nil.
rewrite big_cons -IH -(ED (H i) (int_sum s H)).
by apply: E_eq => w; rewrite big_cons.
Qed.

Definition mse (X : T -> F) a := E (fun w => (X w - a) ^+ 2).

Lemma eq_mse X Y a : X =1 Y -> mse X a = mse Y a.
Proof. by move=> XY; apply: E_eq => w; rewrite XY. Qed.

(* A mean of r pairwise uncorrelated estimates.                               *)
Section Mean.
Variables (r : nat) (X : 'I_r -> T -> F) (a b : F).
Hypothesis H_r : r%:R != 0 :> F.
Hypothesis H_int : forall i, integrable E (X i).
Hypothesis H_int2 : forall i j, integrable E (fun w => X i w * X j w).
Hypothesis H_mean : forall i, E (X i) = a.
Hypothesis H_square : forall i, E (fun w => X i w ^+ 2) = b.
Hypothesis H_independent :
  forall i j, i != j -> E (fun w => X i w * X j w) = E (X i) * E (X j).

Definition mean w := r%:R^-1 * \sum_i X i w.

Lemma mean_unbiased : E mean = a.
Proof.
rewrite (EZ _ (int_sum _ H_int)) E_sum // (eq_bigr (fun=> a)) //.
by rewrite sumr_const card_ord -[a *+ r]mulr_natl mulKf.
Qed.

Lemma centredE i j w : X i w * X j w + - a * (X i w + X j w) + a ^+ 2 =
  (X i w - a) * (X j w - a).
Proof.
rewrite mulrBl !mulrBr opprB [X i w * a]mulrC mulNr mulrDr opprD.
by rewrite -expr2 !addrA addrAC.
Qed.

Let int_mixed i j :
  integrable E (fun w => X i w * X j w + - a * (X i w + X j w)).
Proof. exact: intD (H_int2 i j) (intZ _ (intD (H_int i) (H_int j))). Qed.

Lemma int_centred i j : integrable E (fun w => (X i w - a) * (X j w - a)).
Proof. exact: int_eq (centredE i j) (intD (int_mixed i j) (int_const _)). Qed.

Lemma covariance i j : E (fun w => (X i w - a) * (X j w - a)) =
  if i == j then b - a ^+ 2 else 0.
Proof.
rewrite -(E_eq _ (centredE i j)) (ED (int_mixed i j) (int_const _)).
have int_ij := intD (H_int i) (H_int j).
rewrite (ED (H_int2 i j) (intZ _ int_ij)) (EZ _ int_ij).
rewrite (ED (H_int i) (H_int j)) !H_mean E_const.
rewrite mulNr mulrDr -expr2 opprD addrA subrK.
case: eqVneq => [<-|ij]; last by rewrite H_independent // !H_mean subrr.
by rewrite -(H_square i); congr (_ - _); apply: E_eq => w; rewrite expr2.
Qed.

Lemma mean_mse : mse mean a = r%:R^-1 * (b - a ^+ 2).
Proof.
rewrite /mse (E_eq _ (Y := fun w => r%:R^-1 ^+ 2 *
  \sum_i \sum_j (X i w - a) * (X j w - a))); last first.
  move=> w; rewrite -big_distrlr /= -expr2 -exprMn sumrB sumr_const card_ord.
  by rewrite mulrBr -[a *+ r]mulr_natl mulKf.
have int_row i : integrable E (fun w => \sum_j (X i w - a) * (X j w - a)).
  by apply: int_sum => j; apply: int_centred.
rewrite (EZ _ (int_sum _ int_row)) (E_sum _ int_row).
under eq_bigr => i _ do rewrite (E_sum _ (int_centred i)).
under eq_bigr do under eq_bigr do rewrite covariance.
under eq_bigr do rewrite -big_mkcond (big_pred1 _ (fun=> eq_sym _ _)).
rewrite sumr_const card_ord -[(b - _) *+ r]mulr_natl [r%:R^-1 ^+ 2]expr2.
by rewrite -mulrA mulKf.
Qed.
End Mean.
End Expectation.

Lemma hyperbolic_algebra (F : fieldType) (C P : F) :
  2%:R != 0 :> F -> P != 0 -> C / 2%:R * (P ^+ 2 + 1) - C * P =
  2%:R^-1 * (1 - P^-1) * (P * (C * P) * (1 - P^-1)).
Proof.
move=> n2 P0; rewrite [P * (C * P)]mulrCA [RHS]mulrACA.
rewrite [2%:R^-1 * (C * _)]mulrA -[_ * (P * P) * _]mulrA.
rewrite [P * P * _]mulrACA mulrBr mulr1 divff // -expr2 sqrrB1.
by rewrite [2%:R^-1 * C]mulrC addrAC mulrBr -[P *+ 2]mulr_natl mulrA divfK.
Qed.

Section Features.
Variables (R F : fieldType) (e : exponential R F).
Variables (T : Type) (E : expectation T F) (d r : nat).
Variable w : 'I_r -> T -> 'rV[R]_d.

Definition dot (x y : 'rV[R]_d) := (x *m y^T) 0 0.
Definition half_sq x := dot x x / 2%:R.

Definition normal := forall i u,
  integrable E (fun t => e (dot (w i t) u)) /\
  E (fun t => e (dot (w i t) u)) = e (half_sq u).
Definition independent := forall i j u u', i != j ->
  integrable E (fun t => e (dot (w i t) u) * e (dot (w j t) u')) /\
  E (fun t => e (dot (w i t) u) * e (dot (w j t) u')) =
  E (fun t => e (dot (w i t) u)) * E (fun t => e (dot (w j t) u')).

Hypothesis H_2 : 2%:R != 0 :> R.
Hypothesis H_r : r%:R != 0 :> F.

Lemma dotDr x y z : dot x (y + z) = dot x y + dot x z.
Proof. by rewrite /dot linearD mulmxDr mxE. Qed.

Lemma dotDl x y z : dot (x + y) z = dot x z + dot y z.
Proof. by rewrite /dot mulmxDl mxE. Qed.

Lemma dotC x y : dot x y = dot y x.
Proof. by rewrite /dot -[x in LHS]trmxK -trmx_mul mxE. Qed.

Lemma dotN x y : dot x (- y) = - dot x y.
Proof. by rewrite /dot linearN mulmxN mxE. Qed.

Lemma half_sqD x y : half_sq (x + y) = half_sq x + half_sq y + dot x y.
Proof.
rewrite /half_sq dotDl !dotDr [dot y x]dotC [dot x y + dot y y]addrC addrACA.
by rewrite [LHS]mulrDl -mulr2n -[dot x y *+ 2]mulr_natr mulfK // mulrDl.
Qed.

Lemma half_sqN x : half_sq (- x) = half_sq x.
Proof. by rewrite /half_sq dotN dotC dotN opprK. Qed.

Lemma half_sq2 x : half_sq x + half_sq x = dot x x.
Proof. by rewrite -mulr2n -[_ *+ 2]mulr_natr divfK. Qed.

Lemma half_sq0 : half_sq 0 = 0.
Proof. by rewrite /half_sq /dot mul0mx mxE mul0r. Qed.

(* Sums of exponentials of one direction.                                     *)
Section Exponentials.
Variables (I : finType) (a : I -> F) (u : I -> 'rV[R]_d).
Hypotheses (H_normal : normal) (H_independent : independent).

Definition exponentials i t := \sum_h a h * e (dot (w i t) (u h)).

Lemma int_exponentials i : integrable E (exponentials i).
Proof. by apply: int_sum => h; apply: intZ; case: (H_normal i (u h)). Qed.

Lemma E_exponentials i :
  E (exponentials i) = \sum_h a h * e (half_sq (u h)).
Proof.
rewrite E_sum => [|h]; last by apply: intZ; case: (H_normal i (u h)).
by apply: eq_bigr => h _; case: (H_normal i (u h)) => int <-; rewrite EZ.
Qed.

Lemma int_pair i j h l :
  integrable E (fun t => e (dot (w i t) (u h)) * e (dot (w j t) (u l))).
Proof.
have [<-|ij] := eqVneq i j; last by case: (H_independent (u h) (u l) ij).
case: (H_normal i (u h + u l)) => int _.
by apply: int_eq int => t; rewrite dotDr expD.
Qed.

Lemma productE i j t : \sum_h \sum_l
    a h * a l * (e (dot (w i t) (u h)) * e (dot (w j t) (u l))) =
  exponentials i t * exponentials j t.
Proof.
rewrite big_distrlr /=; apply: eq_bigr => h _; apply: eq_bigr => l _.
by rewrite mulrACA.
Qed.

Let int_row i j h : integrable E (fun t => \sum_l
  a h * a l * (e (dot (w i t) (u h)) * e (dot (w j t) (u l)))).
Proof. by apply: int_sum => l; apply/intZ/int_pair. Qed.

Lemma int_product i j :
  integrable E (fun t => exponentials i t * exponentials j t).
Proof. exact: int_eq (productE i j) (int_sum _ (int_row i j)). Qed.

Lemma E_product i j :
  E (fun t => exponentials i t * exponentials j t) =
  \sum_h \sum_l a h * a l *
    E (fun t => e (dot (w i t) (u h)) * e (dot (w j t) (u l))).
Proof.
rewrite -(E_eq _ (productE i j)) (E_sum _ (int_row i j)).
apply: eq_bigr => h _; rewrite E_sum => [|l]; last exact/intZ/int_pair.
by apply: eq_bigr => l _; rewrite (EZ _ (int_pair i j h l)).
Qed.

Lemma E_square i : E (fun t => exponentials i t ^+ 2) =
  \sum_h \sum_l a h * a l * e (half_sq (u h + u l)).
Proof.
rewrite (E_eq _ (fun t => expr2 (exponentials i t))) E_product.
apply: eq_bigr => h _; apply: eq_bigr => l _; congr (_ * _).
case: (H_normal i (u h + u l)) => _ <-.
by apply: E_eq => t; rewrite dotDr expD.
Qed.

Lemma exponentials_independent i j : i != j ->
  E (fun t => exponentials i t * exponentials j t) =
  E (exponentials i) * E (exponentials j).
Proof.
move=> ij; rewrite E_product !E_exponentials big_distrlr /=.
apply: eq_bigr => h _; apply: eq_bigr => l _.
case: (H_independent (u h) (u l) ij) => _ ->.
by rewrite (H_normal _ _).2 (H_normal _ _).2 mulrACA.
Qed.
End Exponentials.

(* SM(x, y) is estimated; a = |x + y|^2.                                      *)
Section Estimators.
Variables x y : 'rV[R]_d.
Local Notation SM := (e (dot x y)).
Local Notation a := (dot (x + y) (x + y)).
Local Notation c := (e (- half_sq x) * e (- half_sq y)).
Local Notation g := (e (half_sq (x + y))).

Lemma c_g : c * g = SM.
Proof. by rewrite -!expD -opprD half_sqD addKr. Qed.

Lemma e_a : e a = g ^+ 2.
Proof. by rewrite -half_sq2 expD expr2. Qed.

Lemma SM_2 : SM ^+ 2 = c ^+ 2 * e a.
Proof. by rewrite -c_g e_a exprMn. Qed.

Lemma e_double z : e (half_sq (z + z)) = e (dot z z) ^+ 2.
Proof. by rewrite half_sqD half_sq2 expD expr2. Qed.

Section Positive.
Hypotheses (H_normal : normal) (H_independent : independent).
Variable s : F.
Hypothesis H_s : s ^+ 2 = r%:R^-1.

(* phi(z)_i = r^(-1/2) e(w_i.z - |z|^2 / 2).                                  *)
Definition positive i t z := s * e (dot (w i t) z - half_sq z).

Definition positive_estimate t := \sum_i positive i t x * positive i t y.

Let X := exponentials (fun _ : 'I_1 => c) (fun=> x + y).

Lemma positive_mean : positive_estimate =1 mean X.
Proof.
move=> t; rewrite /mean big_distrr; apply: eq_bigr => i _ /=.
rewrite /X /exponentials big_ord1 /positive mulrACA -expr2 H_s; congr (_ * _).
by rewrite -!expD dotDr addrACA addrC.
Qed.

(* Positive features are unbiased.                                            *)
Theorem positive_unbiased : E positive_estimate = SM.
Proof.
rewrite (E_eq _ positive_mean); apply: mean_unbiased => // i.
  exact: int_exponentials.
by rewrite E_exponentials // big_ord1 c_g.
Qed.

(* Their mean squared error is (1/r) e^a SM^2 (1 - e^-a).                     *)
Theorem positive_mse : mse E positive_estimate SM =
  r%:R^-1 * (e a * SM ^+ 2 * (1 - e (- a))).
Proof.
rewrite (eq_mse _ _ positive_mean).
rewrite (mean_mse (b := c ^+ 2 * e a ^+ 2)) //.
- congr (_ * _); rewrite SM_2 [e (- a)]expN [e a * _]mulrC.
  by rewrite [RHS]mulrBr mulr1 mulfK ?exp_neq0 // [e a ^+ 2]expr2 mulrA.
- exact: int_exponentials.
- exact: int_product.
- by move=> i; rewrite E_exponentials // big_ord1 c_g.
- by move=> i; rewrite E_square // !big_ord1 e_double -expr2.
exact: exponentials_independent.
Qed.
End Positive.

Section Hyperbolic.
Hypotheses (H_normal : normal) (H_independent : independent).
Hypothesis H_2F : 2%:R != 0 :> F.
Variable s : F.
Hypothesis H_s : s ^+ 2 = (2%:R * r%:R)^-1.

(* phi(z)_i = (2r)^(-1/2) e(-|z|^2 / 2) [e(w_i.z), e(-w_i.z)].                *)
Definition signed (b : bool) (z : 'rV[R]_d) := if b then z else - z.

Definition hyperbolic b i t z :=
  s * (e (- half_sq z) * e (dot (w i t) (signed b z))).

Definition hyperbolic_estimate t :=
  \sum_i \sum_b hyperbolic b i t x * hyperbolic b i t y.

Let X := exponentials (fun _ : bool => c / 2%:R) (fun b => signed b (x + y)).

Lemma hyperbolic_mean : hyperbolic_estimate =1 mean X.
Proof.
move=> t; rewrite /mean big_distrr; apply: eq_bigr => i _ /=.
rewrite big_distrr; apply: eq_bigr => b _ /=.
have sD : signed b (x + y) = signed b x + signed b y.
  by case: b; rewrite /= ?opprD.
rewrite /hyperbolic mulrACA -expr2 H_s invfM [(e _ * _) * (_ * _)]mulrACA.
rewrite -[e (dot _ _) * _]expD -dotDr -sD [2%:R^-1 * _]mulrC.
by rewrite [c / _ * _]mulrAC [LHS]mulrAC -[LHS]mulrA.
Qed.

Lemma E_hyperbolic i : E (X i) = SM.
Proof.
rewrite E_exponentials // big_bool /= half_sqN -mulrDl -mulrDr.
by rewrite -mulr2n -[_^-1 *+ 2]mulr_natr mulVf // mulr1 c_g.
Qed.

(* Hyperbolic features are unbiased.                                          *)
Theorem hyperbolic_unbiased : E hyperbolic_estimate = SM.
Proof.
rewrite (E_eq _ hyperbolic_mean); apply: mean_unbiased => // i.
  exact: int_exponentials.
exact: E_hyperbolic.
Qed.

(* Their mean squared error is (1/2) (1 - e^-a) times that of as many         *)
(* positive ones.                                                             *)
Theorem hyperbolic_mse : mse E hyperbolic_estimate SM =
  2%:R^-1 * (1 - e (- a)) * (r%:R^-1 * (e a * SM ^+ 2 * (1 - e (- a)))).
Proof.
rewrite (eq_mse _ _ hyperbolic_mean).
rewrite (mean_mse (b := c ^+ 2 / 2%:R * (e a ^+ 2 + 1))) //.
- rewrite [RHS]mulrCA SM_2 [e (- a)]expN; congr (_ * _).
  by rewrite hyperbolic_algebra ?exp_neq0.
- exact: int_exponentials.
- exact: int_product.
- exact: E_hyperbolic.
- move=> i; rewrite E_square // !big_bool /=.
  rewrite -opprD half_sqN subrr addNr e_double half_sq0 exp0 -!mulrDr.
  rewrite [1 + _]addrC -mulr2n -[(_ + 1) *+ 2]mulr_natl mulrA.
  by congr (_ * _); rewrite -[LHS]mulrA divfK // mulrAC -expr2.
exact: exponentials_independent.
Qed.
End Hyperbolic.

(* phi(z)_i = r^(-1/2) e(|z|^2 / 2) [sin w_i.z, cos w_i.z].                   *)
Section Trigonometric.
Variables cos sin : R -> F.
Hypothesis H_cosB : forall z z', cos (z - z') = cos z * cos z' + sin z * sin z'.
Hypothesis H_cos2 : forall z, 2%:R * cos z ^+ 2 = 1 + cos (z + z).
Hypothesis H_cos_normal : forall i u,
  integrable E (fun t => cos (dot (w i t) u)) /\
  E (fun t => cos (dot (w i t) u)) = e (- half_sq u).
Hypothesis H_cos_independent : forall i j u, i != j ->
  integrable E (fun t => cos (dot (w i t) u) * cos (dot (w j t) u)) /\
  E (fun t => cos (dot (w i t) u) * cos (dot (w j t) u)) =
  E (fun t => cos (dot (w i t) u)) * E (fun t => cos (dot (w j t) u)).
Hypothesis H_2F : 2%:R != 0 :> F.
Variable s : F.
Hypothesis H_s : s ^+ 2 = r%:R^-1.

Definition trigonometric (f : R -> F) i t z :=
  s * (e (half_sq z) * f (dot (w i t) z)).

Definition trigonometric_estimate t :=
  \sum_i (trigonometric sin i t x * trigonometric sin i t y +
          trigonometric cos i t x * trigonometric cos i t y).

Local Notation c' := (e (half_sq x) * e (half_sq y)).
Local Notation h := (e (- half_sq (x - y))).

Let X i t := c' * cos (dot (w i t) (x - y)).

Lemma trigonometric_mean : trigonometric_estimate =1 mean X.
Proof.
move=> t; rewrite /mean big_distrr; apply: eq_bigr => i _ /=.
rewrite /trigonometric [X in X + _]mulrACA [X in _ + X]mulrACA -expr2 H_s.
rewrite -mulrDr [X in _ * (X + _)]mulrACA [X in _ * (_ + X)]mulrACA -mulrDr.
by rewrite /X dotDr dotN H_cosB [sin _ * _ + _]addrC.
Qed.

Lemma c_h : c' * h = SM.
Proof.
rewrite -!expD half_sqD half_sqN dotN opprD opprK.
by rewrite addrA subrr add0r.
Qed.

Lemma int_trigonometric i : integrable E (X i).
Proof. exact: intZ (H_cos_normal i (x - y)).1. Qed.

Lemma E_trigonometric i : E (X i) = SM.
Proof. by case: (H_cos_normal i (x - y)) => int E_i; rewrite EZ // E_i c_h. Qed.

Lemma squareE i t :
  c' ^+ 2 / 2%:R * (1 + cos (dot (w i t) (x - y + (x - y)))) = X i t ^+ 2.
Proof. by rewrite dotDr -H_cos2 mulrA divfK // -exprMn. Qed.

Let int_1cos i :
  integrable E (fun t => 1 + cos (dot (w i t) (x - y + (x - y)))).
Proof. exact: intD (int1 E) (H_cos_normal _ _).1. Qed.

Lemma int_trigonometric2 i j : integrable E (fun t => X i t * X j t).
Proof.
have [<-|ij] := eqVneq i j.
  apply: int_eq (intZ (c' ^+ 2 / 2%:R) (int_1cos i)) => t.
  by rewrite squareE expr2.
apply: int_eq (intZ (c' * c') (H_cos_independent (x - y) ij).1) => t.
by rewrite mulrACA.
Qed.

(* Trigonometric features are unbiased.                                       *)
Theorem trigonometric_unbiased : E trigonometric_estimate = SM.
Proof.
rewrite (E_eq _ trigonometric_mean); apply: mean_unbiased => // i.
  exact: int_trigonometric.
exact: E_trigonometric.
Qed.

Lemma c2 : c' ^+ 2 = e a * SM ^- 2.
Proof.
have -> : e a = (c' * SM) ^+ 2 by rewrite e_a -!expD half_sqD.
by rewrite [(_ * SM) ^+ 2]exprMn mulfK // expf_neq0 ?exp_neq0.
Qed.

(* Their mean squared error is (1/2r) e^a SM^-2 (1 - e^-c)^2, c = |x - y|^2.  *)
Theorem trigonometric_mse : mse E trigonometric_estimate SM =
  (2%:R * r%:R)^-1 *
  (e a * SM ^- 2 * (1 - e (- dot (x - y) (x - y))) ^+ 2).
Proof.
have h2 : e (- dot (x - y) (x - y)) = h ^+ 2.
  by rewrite -half_sq2 opprD expD expr2.
rewrite (eq_mse _ _ trigonometric_mean).
rewrite (mean_mse (b := c' ^+ 2 / 2%:R * (1 + h ^+ 2 ^+ 2))) //.
- rewrite -c2 -c_h h2 invfM [2%:R^-1 * _]mulrC -[RHS]mulrA; congr (_ * _).
  rewrite [RHS]mulrA [2%:R^-1 * _]mulrC -[(1 - _) ^+ 2]sqrrN opprB sqrrB1.
  rewrite addrAC [RHS]mulrBr [1 + _]addrC [(_ * h) ^+ 2]exprMn.
  congr (_ - _).
  by rewrite -[h ^+ 2 *+ 2]mulr_natl [RHS]mulrA divfK.
- exact: int_trigonometric.
- exact: int_trigonometric2.
- exact: E_trigonometric.
- move=> i; rewrite -(E_eq _ (squareE i)) (EZ _ (int_1cos i)).
  case: (H_cos_normal i (x - y + (x - y))) => int E_i.
  by rewrite (ED (int1 E) int) E1 E_i half_sqD half_sq2 opprD expD -expr2 h2.
move=> i j ij; have [int E_ij] := H_cos_independent (x - y) ij.
have E_X l : E (X l) = c' * E (fun t => cos (dot (w l t) (x - y))).
  exact: EZ (H_cos_normal l (x - y)).1.
rewrite !E_X mulrACA -E_ij -(EZ _ int).
by apply: E_eq => t; rewrite /X mulrACA.
Qed.
End Trigonometric.
End Estimators.
End Features.

(* A discrete Gaussian: all r x d matrices over a finite field, one direction *)
(* a row, with density e(-|W|^2 / 2).                                         *)
Section Gaussian.
Variables (R : finFieldType) (F : fieldType) (e : exponential R F).
Variables (r d : nat).
Hypothesis H_2 : 2%:R != 0 :> R.
Implicit Types (U V W : 'M[R]_(r, d)).

Definition pairing W U := \sum_i dot (row i W) (row i U).
Definition size2 W := pairing W W / 2%:R.
Definition density W := e (- size2 W).
Definition weight := \sum_W density W.

Lemma pairingC W U : pairing W U = pairing U W.
Proof. by apply: eq_bigr => i _; rewrite dotC. Qed.

Lemma pairingD W U V : pairing W (U + V) = pairing W U + pairing W V.
Proof.
by rewrite -big_split; apply: eq_bigr => i _; rewrite /= linearD dotDr.
Qed.

Lemma size2D W U : size2 (W + U) = size2 W + size2 U + pairing W U.
Proof.
rewrite /size2 pairingD !(pairingC (W + U)) !pairingD (pairingC U W).
rewrite [pairing W U + pairing U U]addrC addrACA [LHS]mulrDl -mulr2n.
by rewrite -[pairing W U *+ 2]mulr_natr mulfK // mulrDl.
Qed.

(* Completing the square.                                                     *)
Lemma density_shift U :
  \sum_W density W * e (pairing W U) = weight * e (size2 U).
Proof.
rewrite (reindex (fun W => W + U)) /=; last first.
  by exists (fun W => W - U) => W _; rewrite ?addrK ?subrK.
rewrite /weight big_distrl; apply: eq_bigr => W _ /=.
rewrite /density -!expD; congr (e _).
rewrite size2D (pairingC (W + U)) pairingD (pairingC U W).
have -> : pairing U U = size2 U + size2 U.
  by rewrite -mulr2n -[_ *+ 2]mulr_natr divfK.
by rewrite (opprD (_ + _)) [LHS]addrA subrK opprD -[LHS]addrA addKr.
Qed.

Hypothesis H_weight : weight != 0.

Definition average (X : 'M[R]_(r, d) -> F) :=
  weight^-1 * \sum_W density W * X W.

Lemma average_eq X Y : X =1 Y -> average X = average Y.
Proof. by move=> XY; congr (_ * _); apply: eq_bigr => W _; rewrite XY. Qed.

Lemma averageD X Y : average (fun W => X W + Y W) = average X + average Y.
Proof.
rewrite -mulrDr -big_split; congr (_ * _); apply: eq_bigr => W _.
by rewrite mulrDr.
Qed.

Lemma averageZ a X : average (fun W => a * X W) = a * average X.
Proof.
rewrite [RHS]mulrCA big_distrr; congr (_ * _); apply: eq_bigr => W _.
by rewrite mulrCA.
Qed.

Lemma average1 : average (fun=> 1) = 1.
Proof.
rewrite /average -[X in _ * X](_ : weight = _) ?mulVf //.
by apply: eq_bigr => W _; rewrite mulr1.
Qed.

(* All functions on a finite space are integrable.                            *)
Definition gaussian : expectation 'M[R]_(r, d) F :=
  @Expectation _ _ average (fun=> True) (fun _ _ _ _ => I) (fun _ _ _ _ => I)
    (fun _ _ _ => I) I average_eq (fun X Y _ _ => averageD X Y)
    (fun a X _ => averageZ a X) average1.

Definition direction (i : 'I_r) W := row i W.

(* u in row i, else 0.                                                        *)
Definition alone (i : 'I_r) (u : 'rV[R]_d) : 'M[R]_(r, d) :=
  \matrix_k (if k == i then u else 0).

Lemma pairing_alone W i u : pairing W (alone i u) = dot (row i W) u.
Proof.
rewrite /pairing (bigD1 i) //= rowK eqxx big1 ?addr0 // => k /negPf ki.
by rewrite rowK ki /dot trmx0 mulmx0 mxE.
Qed.

Lemma gaussian_pairing U : gaussian (fun W => e (pairing W U)) = e (size2 U).
Proof. by rewrite /= /average density_shift mulKf. Qed.

Lemma size2_alone i u : size2 (alone i u) = half_sq u.
Proof. by rewrite /size2 pairing_alone rowK eqxx. Qed.

Lemma gaussian_normal : normal e gaussian direction.
Proof.
move=> i u; split=> //; rewrite -(size2_alone i) -gaussian_pairing.
by apply: average_eq => W; rewrite pairing_alone.
Qed.

Lemma gaussian_independent : independent e gaussian direction.
Proof.
move=> i j u u' ij; split=> //.
rewrite (gaussian_normal i u).2 (gaussian_normal j u').2 -expD.
have -> : half_sq u + half_sq u' = size2 (alone i u + alone j u').
  rewrite size2D !size2_alone pairing_alone rowK eq_sym (negPf ij).
  by rewrite /dot mul0mx mxE addr0.
rewrite -gaussian_pairing; apply: average_eq => W.
by rewrite pairingD !pairing_alone expD.
Qed.
End Gaussian.

(* The weight is not 0: times its conjugate, it is the number of matrices.    *)
Section Weight.
Variables (R : finFieldType) (F : fieldType) (e : exponential R F).
Variables (r d : nat).
Hypothesis H_2 : 2%:R != 0 :> R.
Hypothesis H_e : exists z, e z != 1.
Hypothesis H_char : #|{: 'M[R]_(r, d)}|%:R != 0 :> F.

Lemma character_sum (U : 'M[R]_(r, d)) : U != 0 ->
  \sum_W e (pairing W U) = 0.
Proof.
case/matrix0Pn => i [k Uik]; have [z ez] := H_e.
pose W0 := alone i (z / U i k *: delta_mx 0 k) : 'M[R]_(r, d).
have P0 : pairing W0 U = z.
  rewrite pairingC pairing_alone /dot linearZ /= trmx_delta -scalemxAr -colE.
  by rewrite !mxE divfK.
set S := \sum_W _; have /eqP : e z * S = S.
  rewrite [RHS](reindex (fun W => W + W0)) /=; last first.
    by exists (fun W => W - W0) => W _; rewrite ?addrK ?subrK.
  rewrite big_distrr; apply: eq_bigr => W _ /=.
  by rewrite -expD (pairingC (W + _)) pairingD !(pairingC U) P0 addrC.
rewrite -subr_eq0 -{2}[S]mul1r -mulrBl mulf_eq0 subr_eq0 (negPf ez).
by move/eqP.
Qed.

Lemma weight_neq0 : weight e r d != 0.
Proof.
apply/eqP => w0; move/eqP: H_char; case.
have <- : \sum_(U : 'M[R]_(r, d)) e (size2 U) * (\sum_W e (pairing W U)) =
    #|{: 'M[R]_(r, d)}|%:R.
  rewrite (bigD1 0) //= [X in _ + X]big1 ?addr0 => [|U U0]; last first.
    by rewrite character_sum // mulr0.
  have p0 W : pairing W (0 : 'M[R]_(r, d)) = 0.
    by rewrite /pairing big1 // => i _; rewrite row0 /dot trmx0 mulmx0 mxE.
  rewrite /size2 p0 mul0r exp0 mul1r.
  by under eq_bigr do rewrite p0 exp0; rewrite sumr_const.
under eq_bigr => U _ do rewrite big_distrr /=.
rewrite exchange_big /=.
pose S := \sum_(U : 'M[R]_(r, d)) e (size2 U).
rewrite (eq_bigr (fun W => density e W * S)).
  by rewrite -big_distrl /= -/(weight e r d) w0 mul0r.
move=> W _; rewrite /S [in RHS](reindex (fun U => U + W)) /=; last first.
  by exists (fun U => U - W) => U _; rewrite ?addrK ?subrK.
rewrite big_distrr; apply: eq_bigr => U _ /=; rewrite -!expD; congr (e _).
by rewrite size2D // (pairingC W) [RHS]addrC [RHS]addrAC addrK.
Qed.
End Weight.

(* cos and sin of an exponential, where -1 has a root both in R and in F.     *)
Section Circular.
Variables (R F : fieldType) (e : exponential R F) (T : Type).
Variables (E : expectation T F) (d r : nat) (w : 'I_r -> T -> 'rV[R]_d).
Variables (i_R : R) (i_F : F).
Hypotheses (H_2 : 2%:R != 0 :> R) (H_2F : 2%:R != 0 :> F).
Hypotheses (H_R : i_R ^+ 2 = -1) (H_F : i_F ^+ 2 = -1).
Hypotheses (H_normal : normal e E w) (H_independent : independent e E w).

Definition cosine z := (e (i_R * z) + e (- (i_R * z))) / 2%:R.
Definition sine z := (e (i_R * z) - e (- (i_R * z))) / (2%:R * i_F).

Lemma cosineB z z' : cosine (z - z') = cosine z * cosine z' + sine z * sine z'.
Proof.
rewrite /cosine /sine !mulrBr opprB !expD.
move: (e (i_R * z)) (e (- (i_R * z))) (e (i_R * z')) (e (- (i_R * z'))).
move=> a a' b b'; rewrite (mulrACA (a + a')) (mulrACA (a - a')) -!invfM.
rewrite [2%:R * i_F * _]mulrACA -[i_F * _]expr2 H_F mulrN1 invrN mulrN -mulrBl.
have -> : (a + a') * (b + b') = (a * b + a' * b') + (a * b' + b * a').
  by rewrite mulrDl !mulrDr [a' * b + _]addrC addrACA [b * a']mulrC.
have -> : (a - a') * (b - b') = (a * b + a' * b') - (a * b' + b * a').
  by rewrite mulrBl !mulrBr opprB addrACA opprD [b * a']mulrC.
move: (a * b + _) (a * b' + _) => x y; rewrite opprB [x + y]addrC addrACA.
by rewrite subrr addr0 -mulr2n -[y *+ 2]mulr_natr invfM mulrA mulfK.
Qed.

Lemma cosine2 z : 2%:R * cosine z ^+ 2 = 1 + cosine (z + z).
Proof.
have cN : cosine (- z) = cosine z by rewrite /cosine mulrN opprK addrC.
have sN : sine (- z) = - sine z by rewrite /sine mulrN opprK -[RHS]mulNr opprB.
have c0 : cosine (z - z) = 1.
  by rewrite /cosine subrr mulr0 oppr0 exp0 -mulr2n divff.
have c2 := cosineB z (- z); rewrite opprK cN sN mulrN in c2.
rewrite mulr_natl mulr2n expr2 c2 -[X in _ = X + _]c0 cosineB addrACA.
by rewrite subrr addr0.
Qed.

Let half_each := exponentials e w (fun _ : bool => 2%:R^-1).

Lemma cosine_exponentials u i t :
  cosine (dot (w i t) u) = half_each (fun b => signed b (i_R *: u)) i t.
Proof.
have D : dot (w i t) (i_R *: u) = i_R * dot (w i t) u.
  by rewrite /dot linearZ -scalemxAr mxE.
by rewrite /half_each /exponentials big_bool /= dotN D -mulrDr [RHS]mulrC.
Qed.

Lemma cosine_normal i u :
  integrable E (fun t => cosine (dot (w i t) u)) /\
  E (fun t => cosine (dot (w i t) u)) = e (- half_sq u).
Proof.
split.
  apply: int_eq (int_exponentials _ _ H_normal i) => t.
  exact/esym/cosine_exponentials.
rewrite (E_eq _ (cosine_exponentials u i)) E_exponentials // big_bool /=.
rewrite half_sqN.
have -> : half_sq (i_R *: u) = - half_sq u.
  rewrite /half_sq /dot linearZ -scalemxAr -scalemxAl !mxE mulrA -expr2 H_R.
  by rewrite mulN1r mulNr.
by rewrite -mulrDl -mulr2n -[_ *+ 2]mulr_natr mulVf // mul1r.
Qed.

Lemma cosine_independent i j u : i != j ->
  integrable E (fun t => cosine (dot (w i t) u) * cosine (dot (w j t) u)) /\
  E (fun t => cosine (dot (w i t) u) * cosine (dot (w j t) u)) =
  E (fun t => cosine (dot (w i t) u)) * E (fun t => cosine (dot (w j t) u)).
Proof.
move=> ij; split.
  apply: int_eq (int_product _ _ H_normal H_independent i j) => t.
  by rewrite !cosine_exponentials.
rewrite !(E_eq _ (cosine_exponentials u _)).
rewrite -exponentials_independent //; apply: E_eq => t.
by rewrite !cosine_exponentials.
Qed.
End Circular.

(* 16^a, of order 5 modulo 41.                                                *)
Section Instance.

Lemma sixteen5 : (16%:R : 'F_41) ^+ 5 = 1.
Proof. exact/eqP. Qed.

Lemma sixteenD (a b : 'F_5) :
  (16%:R : 'F_41) ^+ (a + b)%R = 16%:R ^+ a * 16%:R ^+ b.
Proof.
rewrite -exprD [in RHS](divn_eq (a + b) 5) exprD mulnC exprM.
by rewrite sixteen5 expr1n mul1r.
Qed.

Definition sixteen : exponential [zmodType of 'F_5] [fieldType of 'F_41] :=
  Exponential sixteenD (expr0 _).

Lemma sixteen_nontrivial : exists z, sixteen z != 1.
Proof. by exists 1. Qed.

Lemma sixteen_weight r d : weight sixteen r d != 0.
Proof.
apply: weight_neq0 => //; first exact: sixteen_nontrivial.
by rewrite card_mx card_Fp // natrX expf_neq0.
Qed.

(* Four directions of any width over the field of 5 elements, with values in  *)
(* that of 41: every hypothesis of the theorems on positive and hyperbolic    *)
(* features ...                                                               *)
Lemma random_features_instance d : let E := gaussian (sixteen_weight 4 d) in
  [/\ normal sixteen E (@direction _ _ _),
      independent sixteen E (@direction _ _ _),
      2%:R != 0 :> 'F_5, 2%:R != 0 :> 'F_41 & 4%:R != 0 :> 'F_41] /\
  21%:R ^+ 2 = 4%:R^-1 :> 'F_41 /\ 6%:R ^+ 2 = (2%:R * 4%:R)^-1 :> 'F_41.
Proof.
split; last by split; apply/eqP.
by split=> //; [apply: gaussian_normal | apply: gaussian_independent].
Qed.

(* ... and, by the section above, on trigonometric ones.                      *)
Lemma roots_of_minus_1 :
  2%:R ^+ 2 = -1 :> 'F_5 /\ 9%:R ^+ 2 = -1 :> 'F_41.
Proof. by split; apply/eqP. Qed.
End Instance.
