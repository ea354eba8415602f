(* What an agreement in GF(p) is worth.  Mirrors                              *)
(* refimpl/verify/identity_testing.py and refimpl/systems/degrees.py.         *)
(*                                                                            *)
(*   F                the field that is drawn from; GF(p) is one of p elements*)
(*   n                how many numbers are drawn: a draw x is uniform in F^n  *)
(*   P                what is run, as a straight line of operations, each of  *)
(*                    which fills the next register; no branches              *)
(*   claims           registers that hold left - right, one for each entry    *)
(*                    (of each layer) that is compared                        *)
(*   ran              the draws with which no division fails; another draw is *)
(*                    drawn again                                             *)
(*   agree            those of them with which all claims come out 0          *)
(*   worst            delta, of identity_testing.degree                       *)
(*   divided          Delta, of Degrees.divided                               *)
(*                                                                            *)
(* Why straight lines, and not polynomials with their degrees given: the      *)
(* program does not know the polynomials.  It runs the source in GF(p), and   *)
(* runs it again in the number system of degrees, where an entry is           *)
(*                                                                            *)
(*     N / f_1^m_1 f_2^m_2 ...                                                *)
(*                                                                            *)
(* with N known by a bound of its degree, and each f by the register whose    *)
(* numerator it is.  So here the same P is run in four ways: on values in any *)
(* field ([run]), on these degrees ([degrees]), on the numerators themselves  *)
(* ([numerators]), and on rational functions, the variables taken as inputs   *)
(* ([run_generic]).  An identity is false if its claim is not 0 in the last:  *)
(* no numerator and no degree is spoken of there.                             *)
(*                                                                            *)
(* Probabilities are counts: Pr[agree | ran] is #|agree| / #|ran|.            *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.Theory.
Local Open Scope ring_scope.

Section Polynomials.
Variable F : fieldType.

(* Polynomials in n variables: in the first variable, with coefficients that  *)
(* are polynomials in the others.                                             *)
Fixpoint polynomial n : idomainType :=
  if n is n'.+1 then [idomainType of {poly polynomial n'}] else F.

Fixpoint constant n : {rmorphism F -> polynomial n} :=
  if n is n'.+1 then [rmorphism of polyC \o constant n']
  else [rmorphism of idfun].

(* The variables are counted from 0; one that is not there is 0.              *)
Fixpoint variable n i : polynomial n :=
  if n is n'.+1 then (if i is i'.+1 then (variable n' i')%:P else 'X) else 0.

Fixpoint at_point n (x : seq F) : {rmorphism polynomial n -> F} :=
  if n is n'.+1 then
    [rmorphism of horner_eval (head 0 x)
       \o map_poly (at_point n' (behead x))]
  else [rmorphism of idfun].

(* The total degree; here that of 0 is 0.                                     *)
Fixpoint deg n : polynomial n -> nat :=
  match n return polynomial n -> nat with
  | 0 => fun=> 0%N
  | n'.+1 => fun p : {poly polynomial n'} =>
      (\max_(i < size p | (p`_i != 0)%R) (i + deg (p`_i)%R))%N
  end.

Lemma at_constant n x c : at_point n x (constant n c) = c.
Proof.
elim: n x => //= n IH x.
rewrite map_polyC /horner_eval hornerC; exact: IH.
Qed.

Lemma at_variable n (x : n.-tuple F) i : at_point n x (variable n i) = x`_i.
Proof.
elim: n x i => [|n IH] x i /=; first by rewrite tuple0 nth_nil.
case/tupleP: x => a x; case: i => [|i] /=.
  by rewrite map_polyX /horner_eval hornerX.
rewrite map_polyC /horner_eval hornerC; exact: IH.
Qed.

Lemma deg_leP n (p : polynomial n.+1) d :
  reflect (forall i, p`_i != 0 -> (i + deg p`_i%R <= d)%N) (deg p <= d)%N.
Proof.
apply: (iffP (bigmax_leqP _ _ _)) => [H i pi | H i]; last exact: H.
case: (ltnP i (size p)) => [ip | ?]; first exact: (H (Ordinal ip)).
by rewrite nth_default ?eqxx in pi.
Qed.

Lemma deg_coef n (p : polynomial n.+1) i :
  p`_i != 0 -> (i + deg p`_i%R <= deg p)%N.
Proof. by move/deg_leP: (leqnn (deg p)); apply. Qed.

Lemma deg0 n : deg (0 : polynomial n) = 0%N.
Proof.
by case: n => //= n; apply/eqP; rewrite -leqn0; apply/deg_leP => i;
  rewrite coef0 eqxx.
Qed.

Lemma degD n (p q : polynomial n) : (deg (p + q) <= maxn (deg p) (deg q))%N.
Proof.
elim: n p q => // n IH p q; apply/deg_leP => i; rewrite coefD => pq.
have [p0|p0] := eqVneq p`_i 0.
  by rewrite p0 add0r in pq *; rewrite leq_max deg_coef ?orbT.
have [q0|q0] := eqVneq q`_i 0.
  by rewrite q0 addr0 leq_max deg_coef.
apply: leq_trans (leq_add (leqnn i) (IH _ _)) _.
by rewrite addn_maxr geq_max !leq_max !deg_coef ?orbT.
Qed.

Lemma deg_sum n m (f : 'I_m -> polynomial n) k d :
  (forall i, f i != 0%R -> k + deg (f i) <= d)%N ->
  \sum_i f i != 0 -> (k + deg (\sum_i f i) <= d)%N.
Proof.
move=> H; elim/big_ind: _ => [|p q Hp Hq|i _]; [by rewrite eqxx| |exact: H].
have [->|p0] := eqVneq p 0; first by rewrite add0r.
have [->|q0] := eqVneq q 0; first by rewrite addr0 => _; apply: Hp.
move=> _; apply: leq_trans (leq_add (leqnn k) (degD _ _)) _.
by rewrite addn_maxr geq_max Hp ?Hq.
Qed.

Lemma degM n (p q : polynomial n) : (deg (p * q) <= deg p + deg q)%N.
Proof.
elim: n p q => // n IH p q; apply/deg_leP => k; rewrite coefM.
apply: deg_sum => i; rewrite mulf_eq0 negb_or => /andP[pi qi].
have ik : (i <= k)%N by rewrite -ltnS.
rewrite -{1}(subnKC ik); apply: leq_trans (leq_add (leqnn _) (IH _ _)) _.
by rewrite addnACA leq_add ?deg_coef.
Qed.

Lemma deg_constant n c : deg (constant n c) = 0%N.
Proof.
elim: n => //= n IH; apply/eqP; rewrite -leqn0; apply/deg_leP => i.
by rewrite coefC; case: i => [_|i]; rewrite ?eqxx //= add0n IH.
Qed.

Lemma deg1 n : deg (1 : polynomial n) = 0%N.
Proof. by rewrite -(rmorph1 (constant n)) deg_constant. Qed.

Lemma degX n (p : polynomial n) e : (deg (p ^+ e) <= deg p * e)%N.
Proof.
elim: e => [|e IH]; first by rewrite expr0 deg1.
by rewrite exprS mulnS; apply: leq_trans (degM _ _) _; rewrite leq_add2l.
Qed.

Lemma deg_variable n i : (deg (variable n i) <= 1)%N.
Proof.
elim: n i => // n IH [|i]; apply/deg_leP => j /=; last first.
  by rewrite coefC; case: j => [_|j]; rewrite ?eqxx //= add0n IH.
rewrite coefX; have [-> _|_] := eqVneq j 1%N; last by rewrite eqxx.
by rewrite deg1.
Qed.
End Polynomials.

Section SchwartzZippel.
Variable F : finFieldType.

Lemma card_cons n (S : pred (n.+1.-tuple F)) :
  #|S| = (\sum_(y : n.-tuple F) #|[pred a | S [tuple of a :: y]]|)%N.
Proof.
rewrite -sum1_card (eq_bigr (fun y : n.-tuple F =>
  \sum_(a | S [tuple of a :: y]) 1)%N); last by move=> y _; rewrite sum1_card.
rewrite pair_big_dep /=.
rewrite (reindex (fun u : n.-tuple F * F => [tuple of u.2 :: u.1])) //=.
exists (fun x : n.+1.-tuple F => ([tuple of behead x], thead x)) =>
  [[y a] _|x _] /=.
  by rewrite theadE; congr (_, _); apply: val_inj.
by rewrite [RHS]tuple_eta; apply: val_inj.
Qed.

Lemma card_roots (p : {poly F}) : p != 0 -> (#|root p| <= (size p).-1)%N.
Proof.
move=> p0; rewrite cardE -ltnS prednK ?size_poly_gt0 //.
apply: max_poly_roots p0 _ (enum_uniq _).
by apply/allP => a; rewrite mem_enum.
Qed.

(* A polynomial that is not the zero polynomial is zero at no more than       *)
(* deg / #|F| of all points (Schwartz 1980, Zippel 1979).                     *)
Theorem schwartz_zippel n (p : polynomial F n) (H_p : p != 0) :
  (#|F| * #|[pred x : n.-tuple F | at_point n x p == 0%R]| <=
   deg p * #|{: n.-tuple F}|)%N.
Proof.
elim: n p H_p => [|n IH] p p0.
  by rewrite [X in (_ * X)%N]eq_card0 ?muln0 // => x; apply: (negbTE p0).
set q := #|F|; set k := (size p).-1; set c := lead_coef p.
have c0 : c != 0 by rewrite lead_coef_eq0.
have kc : (k + deg c <= deg p)%N by apply: deg_coef.
have Hy (y : n.-tuple F) : (#|[pred a | at_point n.+1 (a :: y) p == 0%R]| <=
    (at_point n y c == 0%R) * q + k)%N.
  case: eqP => [_|/eqP cy].
    by rewrite mul1n (leq_trans (max_card _)) ?leq_addr.
  set py := map_poly (at_point n y) p.
  have sy : size py = size p by rewrite size_map_poly_id0.
  have := @card_roots py; rewrite -size_poly_gt0 sy size_poly_gt0; apply.
  exact: p0.
have : (#|[pred x : n.+1.-tuple F | at_point n.+1 x p == 0%R]| <=
    #|[pred y : n.-tuple F | at_point n y c == 0%R]| * q + q ^ n * k)%N.
  apply: leq_trans (_ : (\sum_(y : n.-tuple F)
      ((at_point n y c == 0%R) * q + k) <= _)%N).
    rewrite card_cons; apply: leq_sum => y _; apply: Hy.
  rewrite big_split /= sum_nat_const card_tuple leq_add2r -big_distrl /=.
  by rewrite -sum1_card [X in (_ <= X * _)%N]big_mkcond.
move/(leq_mul (leqnn q))/leq_trans; apply.
apply: leq_trans (leq_mul kc (leqnn _)).
rewrite card_tuple expnS mulnDl mulnDr addnC leq_add //.
  by rewrite mulnA mulnC.
by rewrite mulnA (mulnC q (_ ^ _)%N) mulnA leq_mul2r -card_tuple IH ?orbT.
Qed.
End SchwartzZippel.

Section Programs.
Variable F : fieldType.

(* A number is c times a register.  A constant is c times the register of 1.  *)
(* Signs, products and quotients with constants, and sums with 0 make no new  *)
(* register, as in Degrees they return the object that they were given; so a  *)
(* register is an object of Degrees, and two numbers that differ by c have    *)
(* one factor.                                                                *)
Definition number := (F * nat)%type.

Inductive operation :=
| Input of nat
| One
| Add of number & number
| Mul of number & number
| Div of number & number.

(* Registers are counted from 0; one that is not there holds 0.               *)
Definition program := seq operation.

(* P run on values of a field K, from the inputs x, with the constants of F   *)
(* read as members of K: what the registers hold, and whether no division     *)
(* failed.  MathComp's x / 0 is 0: [possible] says where the program refuses. *)
Section Run.
Variables (K : fieldType) (embed : F -> K) (x : nat -> K).

Definition read (R : seq K) (a : number) : K := embed a.1 * R`_(a.2).

Definition result (R : seq K) o : K :=
  match o with
  | Input i => x i
  | One => 1
  | Add a b => read R a + read R b
  | Mul a b => read R a * read R b
  | Div a b => read R a / read R b
  end.

Definition possible (R : seq K) o :=
  if o is Div _ b then read R b != 0 else true.

Definition step (s : seq K * bool) o :=
  (rcons s.1 (result s.1 o), s.2 && possible s.1 o).

Definition run (P : program) := foldl step ([::], true) P.
End Run.

(* P run on degrees.  A quotient is a bound of the degree of a numerator, and *)
(* how often the numerator of each register is a factor of the denominator.   *)
(* (The program leaves out factors of degree 0; no degree changes with them.) *)
Record quotient := Quotient { numerator : nat; factors : nat -> nat }.

Definition CONSTANT := Quotient 0 (fun=> 0%N).

(* The degree of a product of factors, and the product.                       *)
Definition degree (Q : seq quotient) (A : nat -> nat) :=
  (\sum_(j < size Q) numerator (nth CONSTANT Q j) * A j)%N.

Definition product (R : comRingType) (N : seq R) (A : nat -> nat) :=
  \prod_(j < size N) N`_j ^+ A j.

(* On factors: AB, the least common multiple, A without what it has in common *)
(* with B.                                                                    *)
Definition prod_of (A B : nat -> nat) j := (A j + B j)%N.
Definition lcm_of (A B : nat -> nat) j := maxn (A j) (B j).
Definition without (A B : nat -> nat) j := (A j - B j)%N.

(* a/A + b/B = (a L/A + b L/B) / L, with L the least common multiple;         *)
(* (a/A)(b/B) = ab/AB;                                                        *)
(* (a/A)/(b/B) = a (B/g) / (A/g) b, with g the greatest common divisor.       *)
Definition quotient_of (Q : seq quotient) o : quotient :=
  let d (a : number) := numerator (nth CONSTANT Q a.2) in
  let A (a : number) := factors (nth CONSTANT Q a.2) in
  match o with
  | Input _ => Quotient 1 (fun=> 0%N)
  | One => CONSTANT
  | Add a b =>
      let L := lcm_of (A a) (A b) in
      Quotient (maxn (d a + degree Q (without L (A a)))
                     (d b + degree Q (without L (A b)))) L
  | Mul a b => Quotient (d a + d b) (prod_of (A a) (A b))
  | Div a b => Quotient (d a + degree Q (without (A b) (A a)))
                        (prod_of (without (A a) (A b)) (eq_op^~ b.2))
  end.

Definition degrees (P : program) :=
  foldl (fun Q o => rcons Q (quotient_of Q o)) [::] P.

(* What is divided by, as often as it is.                                     *)
Definition divisors (P : program) : seq number :=
  pmap (fun o => if o is Div _ b then Some b else None) P.

(* Each register that is divided by counts once.                              *)
Definition divided (P : program) :=
  (\sum_(j <- undup (map snd (divisors P)))
     numerator (nth CONSTANT (degrees P) j))%N.

Definition worst (P : program) (claims : seq nat) :=
  (\max_(i <- claims) numerator (nth CONSTANT (degrees P) i))%N.

(* P run on numerators.                                                       *)
Section Numerators.
Variable n : nat.
Implicit Types (N : seq (polynomial F n)) (Q : seq quotient).

Definition scaled N (a : number) := constant F n a.1 * N`_(a.2).

Definition numerator_of Q N o : polynomial F n :=
  let A (a : number) := factors (nth CONSTANT Q a.2) in
  let L a b := lcm_of (A a) (A b) in
  match o with
  | Input i => variable F n i
  | One => 1
  | Add a b => scaled N a * product N (without (L a b) (A a))
             + scaled N b * product N (without (L a b) (A b))
  | Mul a b => scaled N a * scaled N b
  | Div a b => scaled N (a.1 / b.1, a.2) * product N (without (A b) (A a))
  end.

Definition numerators (P : program) :=
  (foldl (fun s o => (rcons s.1 (quotient_of s.1 o),
                      rcons s.2 (numerator_of s.1 s.2 o))) ([::], [::]) P).2.

Lemma numerators_rcons P o : numerators (rcons P o) =
  rcons (numerators P) (numerator_of (degrees P) (numerators P) o).
Proof.
rewrite /numerators foldl_rcons /=; congr (rcons _ (numerator_of _ _ _)).
elim/last_ind: P => // P o' IH; rewrite /degrees !foldl_rcons /= -/(degrees P).
by rewrite IH.
Qed.

Lemma degrees_rcons P o :
  degrees (rcons P o) = rcons (degrees P) (quotient_of (degrees P) o).
Proof. exact: foldl_rcons. Qed.

Lemma size_degrees P : size (degrees P) = size P.
Proof.
by elim/last_ind: P => // P o IH; rewrite degrees_rcons !size_rcons IH.
Qed.

Lemma size_numerators P : size (numerators P) = size P.
Proof.
by elim/last_ind: P => // P o IH; rewrite numerators_rcons !size_rcons IH.
Qed.

(* The numerators of what is divided by, at the time of the division.         *)
Fixpoint divided_from (done P : program) : seq (polynomial F n) :=
  if P is o :: P' then
    (if o is Div _ b then [:: scaled (numerators done) b] else [::])
    ++ divided_from (rcons done o) P'
  else [::].

Definition divided_by := divided_from [::].

Lemma divided_by_rcons P o : divided_by (rcons P o) =
  divided_by P ++
  (if o is Div _ b then [:: scaled (numerators P) b] else [::]).
Proof.
rewrite /divided_by -[in numerators P](cat0s P).
elim: P [::] => [|o' P IH] d /=; first by rewrite !cats0; case: o.
by rewrite IH cat_rcons; case: o'.
Qed.

Lemma nth_rcons_neq0 N p i : N`_i != 0 -> (rcons N p)`_i = N`_i.
Proof.
by rewrite nth_rcons; case: ltnP => // ?; rewrite nth_default ?eqxx.
Qed.

(* The degrees are bounds.                                                    *)
Lemma deg_scaled N a : (deg (scaled N a) <= deg N`_(a.2)%R)%N.
Proof. by apply: leq_trans (degM _ _) _; rewrite deg_constant. Qed.

Lemma deg_product Q N A : size Q = size N ->
    (forall j, deg N`_j%R <= numerator (nth CONSTANT Q j))%N ->
  (deg (product N A) <= degree Q A)%N.
Proof.
move=> sz H; rewrite /product /degree sz.
elim/big_ind2: _ => [|p d q e Hp Hq|j _].
- by rewrite deg1.
- exact: leq_trans (degM _ _) (leq_add Hp Hq).
by apply: leq_trans (degX _ _) _; rewrite leq_mul2r H orbT.
Qed.

Lemma bound_step Q N o : size Q = size N ->
    (forall j, deg N`_j%R <= numerator (nth CONSTANT Q j))%N ->
  (deg (numerator_of Q N o) <= numerator (quotient_of Q o))%N.
Proof.
move=> sz H; have scal a := leq_trans (deg_scaled N a) (H a.2).
have times a A : (deg (scaled N a * product N A) <=
    numerator (nth CONSTANT Q a.2) + degree Q A)%N.
  exact: leq_trans (degM _ _) (leq_add (scal a) (deg_product _ sz H)).
case: o => [i||a b|a b|a b] /=; last exact: times.
- exact: deg_variable.
- by rewrite deg1.
- by apply: leq_trans (degD _ _) _; rewrite geq_max !leq_max !times orbT.
exact: leq_trans (degM _ _) (leq_add (scal a) (scal b)).
Qed.

Lemma degrees_bound P i :
  (deg (numerators P)`_i%R <= numerator (nth CONSTANT (degrees P) i))%N.
Proof.
elim/last_ind: P i => [|P o IH] i; first by rewrite !nth_nil deg0.
rewrite degrees_rcons numerators_rcons !nth_rcons size_degrees size_numerators.
case: ltnP => // _; case: eqP => [_|_] /=; last by rewrite deg0.
by apply: bound_step; rewrite ?size_degrees ?size_numerators.
Qed.

Lemma divided_by_divisors P : 0 \notin divided_by P ->
  divided_by P = [seq scaled (numerators P) b | b <- divisors P].
Proof.
have same N p a : scaled N a != 0 -> scaled (rcons N p) a = scaled N a.
  by rewrite mulf_eq0 negb_or /scaled => /andP[_ /nth_rcons_neq0 ->].
elim/last_ind: P => // P o IH; rewrite divided_by_rcons mem_cat negb_or.
move=> /andP[P0 o0]; rewrite /divisors -cats1 pmap_cat map_cat cats1.
rewrite numerators_rcons IH //; congr (_ ++ _).
  apply/eq_in_map => b Pb; rewrite same //.
  by apply: (contraNneq _ P0) => Nb; rewrite IH //; apply/mapP; exists b.
by case: o o0 => //= a b; rewrite inE => b0; rewrite same // eq_sym.
Qed.

Section Value.
Variables (K : fieldType) (phi : {rmorphism polynomial F n -> K}).

Definition is_fraction N (v : K) (A : nat -> nat) (p : polynomial F n) :=
  v * phi (product N A) = phi p /\
  forall j, A j != 0%N -> phi N`_j != 0.

Lemma product_neq0 N (A : nat -> nat) :
  (forall j, A j != 0%N -> phi N`_j != 0) -> phi (product N A) != 0.
Proof.
move=> H; rewrite rmorph_prod; apply/prodf_neq0 => j _.
rewrite rmorphX expf_eq0 negb_and -leqNgt leqn0.
by have [_|/H ->] := eqVneq (A j) 0%N; rewrite ?orbT.
Qed.

Lemma is_fraction_rcons N q v A p :
  is_fraction N v A p -> is_fraction (rcons N q) v A p.
Proof.
case=> H supp; split=> [|j Aj]; last first.
  rewrite nth_rcons_neq0 ?supp //; apply: contraNneq (supp j Aj) => ->.
  by rewrite rmorph0.
rewrite /product size_rcons big_ord_recr /= nth_rcons ltnn eqxx.
have -> : A (size N) = 0%N.
  apply/eqP; apply/negPn/negP => /supp.
  by rewrite nth_default // rmorph0 eqxx.
rewrite expr0 mulr1 -H; congr (_ * phi _); apply: eq_bigr => j _.
by rewrite nth_rcons ltn_ord.
Qed.

Lemma product_none N : product N (fun=> 0%N) = 1.
Proof. by rewrite /product big1 // => j _; rewrite expr0. Qed.

Lemma productM N A B :
  product N (prod_of A B) = product N A * product N B.
Proof.
by rewrite /product -big_split; apply: eq_bigr => j _; rewrite exprD.
Qed.

Lemma product_without N (A L : nat -> nat) :
  (forall j, A j <= L j)%N ->
  product N L = product N A * product N (without L A).
Proof.
move=> AL; rewrite -productM; apply: eq_bigr => j _.
by rewrite /prod_of /without subnKC.
Qed.

Lemma product_swap N A B :
  product N A * product N (without B A) = product N B * product N (without A B).
Proof.
rewrite -!productM; apply: eq_bigr => j _.
by rewrite /prod_of /without -!maxnE maxnC.
Qed.

Lemma product_single N b : (b < size N)%N -> product N (eq_op^~ b) = N`_b.
Proof.
move=> bN; rewrite /product (bigD1 (Ordinal bN)) //= eqxx expr1.
rewrite big1 ?mulr1 // => j; rewrite -val_eqE /= => /negPf ->.
exact: expr0.
Qed.

Variables (x : nat -> K).
Hypothesis H_x : forall i, x i = phi (variable F n i).
Variable embed : F -> K.
Hypothesis H_embed : forall c, embed c = phi (constant F n c).

Lemma fraction_step Q N R o :
    (forall i, is_fraction N R`_i (factors (nth CONSTANT Q i)) N`_i) ->
    possible embed R o ->
  is_fraction N (result embed x R o) (factors (quotient_of Q o))
    (numerator_of Q N o).
Proof.
pose A (a : number) := factors (nth CONSTANT Q a.2) => H.
have val a : read embed R a * phi (product N (A a)) = phi (scaled N a).
  by rewrite /read H_embed -mulrA (H a.2).1 -rmorphM.
have over a L : (forall j, A a j <= L j)%N ->
    read embed R a * phi (product N L) =
    phi (scaled N a * product N (without L (A a))).
  by move=> AL; rewrite (product_without _ AL) [RHS]rmorphM rmorphM mulrA val.
case: o => [i||a b|a b|a b] /= ok; rewrite -?/(A a) -?/(A b).
- by split=> //; rewrite product_none rmorph1 mulr1.
- by split=> //; rewrite product_none mul1r.
- split=> [|j].
    by rewrite mulrDl rmorphD !over // => j; rewrite ?leq_maxl ?leq_maxr.
  rewrite /lcm_of -lt0n leq_max !lt0n.
  by case/orP; [apply: (H a.2).2 | apply: (H b.2).2].
- split=> [|j]; first by rewrite productM rmorphM mulrACA !val -rmorphM.
  rewrite /prod_of addn_eq0 negb_and.
  by case/orP; [apply: (H a.2).2 | apply: (H b.2).2].
have [cb Rb] : embed b.1 != 0 /\ R`_(b.2) != 0.
  by apply/andP; rewrite -negb_or -mulf_eq0.
have Nb : phi N`_(b.2) != 0.
  by rewrite -(H b.2).1 mulf_neq0 // product_neq0 //; apply: (H b.2).2.
split=> [|j] /=; last first.
  rewrite /prod_of addn_eq0 negb_and => /orP[Aj|].
    by apply: (H a.2).2; apply: contraNneq Aj => Aj; rewrite /without [A a j]Aj.
  by have [->|] := eqVneq j b.2.
have bN : (b.2 < size N)%N.
  by rewrite ltnNge; apply: contraNN Nb => ?; rewrite nth_default ?rmorph0.
have swap : phi N`_(a.2) * phi (product N (without (A b) (A a))) =
    R`_(a.2) * (phi (product N (A b)) * phi (product N (without (A a) (A b)))).
  by rewrite -(H a.2).1 -mulrA -!rmorphM product_swap.
have cdiv : phi (constant F n (a.1 / b.1)) = embed a.1 / embed b.1.
  rewrite !H_embed; exact: (fmorph_div [rmorphism of phi \o constant F n]).
have -> : phi (scaled N (a.1 / b.1, a.2) * product N (without (A b) (A a))) =
    embed a.1 / embed b.1 *
    (phi N`_(a.2) * phi (product N (without (A b) (A a)))).
  by rewrite -cdiv -!rmorphM mulrA.
rewrite swap productM product_single // rmorphM -(H b.2).1 -/(A b).
rewrite /read invfM [X in X * _ = _]mulrACA -[LHS]mulrA; congr (_ * _).
by rewrite mulrCA (mulrA (_ / _)) divfK // mulrC -mulrA.
Qed.

Lemma run_rcons P o : run embed x (rcons P o) = step embed x (run embed x P) o.
Proof. exact: foldl_rcons. Qed.

Lemma size_run P : size (run embed x P).1 = size P.
Proof. by elim/last_ind: P => // P o IH; rewrite run_rcons !size_rcons IH. Qed.

Lemma run_fractions P i : (run embed x P).2 ->
  is_fraction (numerators P) (run embed x P).1`_i
    (factors (nth CONSTANT (degrees P) i)) (numerators P)`_i.
Proof.
elim/last_ind: P i => [|P o IH] i.
  by split=> [|j]; rewrite /= !nth_nil ?mul0r ?rmorph0.
rewrite run_rcons => /= /andP[ok can].
rewrite degrees_rcons numerators_rcons; apply: is_fraction_rcons.
rewrite !nth_rcons size_run size_degrees size_numerators.
case: ltnP => [_|_]; first exact: IH.
case: eqP => _; last by split=> //; rewrite mul0r rmorph0.
by apply: fraction_step can => j; apply: IH.
Qed.

Lemma run_possible P : (run embed x P).2 ->
  forall b, ((run embed x P).1`_b != 0) = (phi (numerators P)`_b != 0).
Proof.
move=> ok b; have [<- /product_neq0 A0] := run_fractions b ok.
by rewrite mulf_eq0 negb_or A0 andbT.
Qed.

Lemma run_ok P :
  (run embed x P).2 = all (fun p => phi p != 0) (divided_by P).
Proof.
elim/last_ind: P => // P o IH.
rewrite run_rcons divided_by_rcons all_cat -IH /=.
case ok: (run embed x P).2 => //.
case: o => //= a b; rewrite andbT /read rmorphM -H_embed.
by rewrite !mulf_eq0 !negb_or run_possible.
Qed.
End Value.
End Numerators.
End Programs.

Section Survival.
Variables (F : finFieldType) (n : nat) (P : program F).

(* P on a draw, and P on the variables, among rational functions.             *)
Definition run_at (x : n.-tuple F) := run id (nth 0 x) P.

Definition rational_function := [fieldType of {fraction polynomial F n}].

Definition as_fraction : {rmorphism polynomial F n -> rational_function} :=
  [rmorphism of @FracField.tofrac (polynomial F n)].

Definition run_generic :=
  run (fun c => as_fraction (constant F n c))
      (fun i => as_fraction (variable F n i)) P.

Definition ran := [set x | (run_at x).2].

Definition agree (claims : seq nat) :=
  [set x | (run_at x).2 && all (fun i => (run_at x).1`_i == 0) claims].

Let at_x (x : n.-tuple F) := at_point n x.
Let H_at (x : n.-tuple F) i : x`_i = at_x x (variable F n i).
Proof. by rewrite at_variable. Qed.
Let H_c (x : n.-tuple F) c : id c = at_x x (constant F n c).
Proof. by rewrite at_constant. Qed.

(* A claim is true just if its numerator is 0, and a draw is run just if no   *)
(* numerator that is divided by is 0 at it.                                   *)
Lemma generic_numerator i : run_generic.2 ->
  (run_generic.1`_i != 0) = ((numerators n P)`_i != 0).
Proof.
move=> ok; rewrite -[(numerators n P)`_i == 0]tofrac_eq0.
exact: (run_possible (phi := as_fraction) (fun=> erefl) (fun=> erefl)).
Qed.

Lemma generic_ok : run_generic.2 = (0 \notin divided_by n P).
Proof.
rewrite (run_ok (phi := as_fraction) (fun=> erefl) (fun=> erefl)).
by rewrite -has_pred1 -all_predC; apply: eq_all => p /=; rewrite tofrac_eq0.
Qed.

Lemma ran_generic x : (run_at x).2 -> run_generic.2.
Proof.
rewrite generic_ok (run_ok (H_at x) (H_c x)) => /allP ok.
by apply/negP => /ok; rewrite rmorph0 eqxx.
Qed.

(* What is true of rational functions is true at every draw that is run: the  *)
(* test rejects nothing that is true.                                         *)
Theorem true_identities_agree i (H_true : run_generic.1`_i = 0) x :
  (run_at x).2 -> (run_at x).1`_i = 0.
Proof.
move=> ok; have := generic_numerator i (ran_generic ok).
rewrite H_true eqxx => /esym/negPn/eqP Ni; apply/eqP/negPn.
by rewrite (run_possible (H_at x) (H_c x)) // Ni rmorph0 eqxx.
Qed.

Lemma count_ran : run_generic.2 ->
  ((#|F| - divided P) * #|{: n.-tuple F}| <= #|F| * #|ran|)%N.
Proof.
rewrite generic_ok => D0; have E := divided_by_divisors D0.
set D := \prod_(j <- undup (map snd (divisors P))) (numerators n P)`_j.
have nz b : b \in divisors P -> scaled (numerators n P) b != 0.
  move=> Pb; apply: (contraNneq _ D0) => Nb; rewrite E.
  by apply/mapP; exists b.
have Dnz : D != 0.
  rewrite prodf_seq_neq0; apply/allP => j; rewrite mem_undup /=.
  by case/mapP => b /nz Nb ->; move: Nb; rewrite mulf_eq0 negb_or => /andP[].
have dD : (deg D <= divided P)%N.
  rewrite /D /divided; elim/big_ind2: _ => [|p d q e Hp Hq|b _].
  - by rewrite deg1.
  - exact: leq_trans (degM _ _) (leq_add Hp Hq).
  exact: degrees_bound.
have := schwartz_zippel Dnz; set Z := [pred x | _] => SZ.
have : (#|{: n.-tuple F}| <= #|Z| + #|ran|)%N.
  rewrite -(cardC Z) leq_add2l subset_leq_card //; apply/subsetP => x.
  rewrite !inE (run_ok (H_at x) (H_c x)) E all_map => Dx.
  apply/allP => b Pb; rewrite /= rmorphM mulf_neq0 //.
    rewrite /at_x at_constant; move: (nz b Pb); rewrite mulf_eq0 negb_or.
    by move=> /andP[+ _]; apply: contraNneq => ->; rewrite rmorph0.
  apply: contraNneq Dx => Nb; rewrite rmorph_prod (big_rem b.2) /=.
    by rewrite Nb mul0r.
  by rewrite mem_undup map_f.
move/(leq_mul (leqnn #|F|)); rewrite mulnDr => H.
rewrite mulnBl leq_subLR; apply: leq_trans H _; rewrite leq_add2r.
by apply: leq_trans SZ _; rewrite leq_mul2r dD orbT.
Qed.

Lemma count_agree claims i : i \in claims -> run_generic.1`_i != 0 ->
  (#|F| * #|agree claims| <= worst P claims * #|{: n.-tuple F}|)%N.
Proof.
move=> ic fi; have [ok|nok] := boolP run_generic.2; last first.
  rewrite [X in (_ * X)%N]eq_card0 ?muln0 // => x; rewrite !inE.
  by apply/negbTE; rewrite negb_and (contraNN (@ran_generic x)).
rewrite generic_numerator // in fi.
apply: leq_trans (leq_trans (schwartz_zippel fi) _).
  rewrite leq_mul2l subset_leq_card ?orbT //; apply/subsetP => x.
  rewrite !inE => /andP[okx /allP /(_ i ic)]; apply: contraLR => Nx.
  by rewrite (run_possible (H_at x) (H_c x)).
rewrite leq_mul2r (leq_trans _ (leq_bigmax_seq _ ic isT)) ?orbT //.
exact: degrees_bound.
Qed.

(* If any of the claims is false, then among the draws that are run they all  *)
(* agree with probability delta / (p - Delta) at most.                        *)
Theorem false_identities_survive claims i (H_i : i \in claims)
    (H_false : run_generic.1`_i != 0) :
  (#|agree claims| * (#|F| - divided P) <= worst P claims * #|ran|)%N.
Proof.
have q0 : (0 < #|F|)%N by apply/card_gt0P; exists 0.
have [ok|nok] := boolP run_generic.2; last first.
  rewrite [#|agree _|]eq_card0 // => x; rewrite !inE.
  by apply/negbTE; rewrite negb_and (contraNN (@ran_generic x)).
rewrite -(leq_pmul2l q0) mulnA.
apply: leq_trans (leq_mul (count_agree H_i H_false) (leqnn _)) _.
rewrite -mulnA (mulnCA #|F|) leq_mul2l [X in (X <= _)%N]mulnC.
by rewrite count_ran ?orbT.
Qed.

(* As identity_testing.survival says it; for p <= Delta nothing is said.      *)
Definition survival (delta divided p : nat) : rat :=
  if (divided < p)%N then Num.min 1 (delta%:R / (p - divided)%:R) else 1.

Corollary survives claims i (H_i : i \in claims)
    (H_false : run_generic.1`_i != 0) :
  #|agree claims|%:R <= survival (worst P claims) (divided P) #|F| * #|ran|%:R.
Proof.
have all_ran : (#|agree claims| <= #|ran|)%N.
  by apply/subset_leq_card/subsetP => x; rewrite !inE => /andP[].
rewrite /survival; case: ltnP => [H|_]; last by rewrite mul1r ler_nat.
rewrite minr_pmull ?ler0n // le_minr mul1r ler_nat all_ran /=.
rewrite mulrAC ler_pdivl_mulr ?ltr0n ?subn_gt0 // -!natrM ler_nat.
exact: false_identities_survive H_false.
Qed.

(* T draws, each drawn again until it is run: all agree with the T-th power   *)
(* of that probability at most.                                               *)
Corollary survives_trials T claims i (H_i : i \in claims)
    (H_false : run_generic.1`_i != 0) :
  #|[pred f : {ffun 'I_T -> n.-tuple F} | [forall t, f t \in agree claims]]|%:R
  <= survival (worst P claims) (divided P) #|F| ^+ T *
     #|[pred f : {ffun 'I_T -> n.-tuple F} | [forall t, f t \in ran]]|%:R.
Proof.
have count (A : {set n.-tuple F}) :
    #|[pred f : {ffun 'I_T -> n.-tuple F} | [forall t, f t \in A]]| =
    (#|A| ^ T)%N by rewrite -[in RHS](card_ord T) -card_ffun_on.
rewrite !count !natrX -exprMn ler_expn2r ?nnegrE ?ler0n //.
  by apply: le_trans (survives H_i H_false); apply: ler0n.
exact: survives H_false.
Qed.
End Survival.

(* The false claim that x = x / x: false in every field, run wherever x is    *)
(* not 0, of delta = 2 and Delta = 1.                                         *)
Section Example.
Variable F : finFieldType.

Definition self_quotient : program F :=
  [:: Input F 0; Div (1, 0%N) (1, 0%N); Add (1, 0%N) (-1, 1%N)].

Example self_quotient_false : (run_generic 1 self_quotient).1`_2 != 0.
Proof.
have X0 : as_fraction F 1 (variable F 1 0) != 0.
  by rewrite tofrac_eq0 polyX_eq0.
rewrite /= /read /= rmorph1 !rmorphN !rmorph1 !mul1r divff // mulr1.
rewrite subr_eq0 -(rmorph1 (as_fraction F 1)) tofrac_eq.
apply/eqP => /(congr1 (fun p : {poly F} => size p)).
by rewrite size_polyX size_poly1.
Qed.

Example self_quotient_degrees :
  worst self_quotient [:: 2%N] = 2%N /\ divided self_quotient = 1%N.
Proof.
by rewrite /worst /divided !big_seq1 /= /degree !big_ord_recl !big_ord0.
Qed.
End Example.
