(* How far a float result may lie from the truth.  Mirrors                    *)
(* refimpl/verify/bounds.py (unit_roundoff, exact_with_bound) and the rules   *)
(* of refimpl/systems/running_error.py.                                       *)
(*                                                                            *)
(*   F            any real field: the true numbers                            *)
(*   u            the unit roundoff; fl(a o b) = (a o b)(1 + d), |d| <= u.    *)
(*                No underflow, no overflow                                   *)
(*   gamma k      k u / (1 - k u).  MathComp's x / 0 is 0: k u < 1 is always  *)
(*                a hypothesis                                                *)
(*   formula      what a program computes for one number: entries, sums and   *)
(*                products in any nesting (a number used twice is written     *)
(*                twice); [roundings] of them lie on the worst path           *)
(*   computed     what a machine may make of a formula, each operation with a *)
(*                d of its own; d = 0 is allowed, so a fused multiply-add is  *)
(*                covered, and so is adding a 0                               *)
(*   tree         an order of summation: any binary tree                      *)
(*   num den o    as in linear_attention.v; A_num, A_den are the same with    *)
(*                absolute values; K = n + r + 2                              *)
(*                                                                            *)
(* The bound counts from the features on: phi and RoPE count as they were     *)
(* rounded.                                                                   *)
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.Theory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Gamma.
Variables (F : realFieldType) (u : F).
Hypothesis H_u : 0 <= u.

Definition gamma k := k%:R * u / (1 - k%:R * u).

Lemma gamma1E k : k%:R * u < 1 -> 1 + gamma k = (1 - k%:R * u)^-1.
Proof.
rewrite -subr_gt0 => /lt0r_neq0 k1; apply: (mulIf k1).
by rewrite mulrDl mul1r divfK // mulVf // subrK.
Qed.

Lemma fewer j k : (j <= k)%N -> k%:R * u < 1 -> j%:R * u < 1.
Proof. by move=> jk; apply: le_lt_trans; rewrite ler_wpmul2r ?ler_nat. Qed.

Lemma gamma_le j k : (j <= k)%N -> k%:R * u < 1 -> gamma j <= gamma k.
Proof.
move=> jk k1; have j1 := fewer jk k1.
rewrite -(ler_add2l 1) !gamma1E // lef_pinv ?posrE ?subr_gt0 //.
by rewrite ler_add2l ler_opp2 ler_wpmul2r ?ler_nat.
Qed.

Lemma gammaD j k : (j + k)%:R * u < 1 ->
  (1 + gamma j) * (1 + gamma k) <= 1 + gamma (j + k).
Proof.
move=> jk; have j1 := fewer (leq_addr k j) jk.
have k1 := fewer (leq_addl j k) jk.
rewrite !gamma1E // -invfM lef_pinv ?posrE ?mulr_gt0 ?subr_gt0 //.
rewrite natrD mulrDl opprD addrA [in X in _ <= X]mulrBl mul1r mulrBr mulr1.
rewrite opprB addrA [X in _ <= X]addrAC [1 - j%:R * u - _]addrAC.
by rewrite ler_addl !mulr_ge0 ?ler0n.
Qed.

Lemma gamma_1 : 1%:R * u < 1 -> u <= gamma 1.
Proof.
move=> u1; rewrite /gamma ler_pdivl_mulr ?subr_gt0 // mulrBr mulr1 !mul1r.
by rewrite ler_subl_addr ler_addl mulr_ge0.
Qed.

(* y approximates x, |x| <= a, with k roundings.                              *)
Definition near k (y x a : F) := `|y - x| <= gamma k * a /\ `|x| <= a.

Lemma near_size k y x a : near k y x a -> `|y| <= (1 + gamma k) * a.
Proof.
case=> yx xa; rewrite -(subrK x y) (le_trans (ler_norm_add _ _)) //.
by rewrite mulrDl mul1r addrC ler_add.
Qed.

Lemma near_le j k y x a : (j <= k)%N -> k%:R * u < 1 ->
  near j y x a -> near k y x a.
Proof.
move=> jk k1 [yx xa]; split=> //; apply: (le_trans yx).
by rewrite ler_wpmul2r ?gamma_le // (le_trans _ xa).
Qed.

Lemma near_exact x : near 0 x x `|x|.
Proof. by split; rewrite // subrr normr0 /gamma !mul0r. Qed.

Lemma nearD k y x a y' x' a' :
  near k y x a -> near k y' x' a' -> near k (y + y') (x + x') (a + a').
Proof.
move=> [yx xa] [yx' xa']; split; last first.
  by rewrite (le_trans (ler_norm_add _ _)) ?ler_add.
by rewrite opprD addrACA mulrDr (le_trans (ler_norm_add _ _)) ?ler_add.
Qed.

Lemma nearM j k y x a y' x' a' : (j + k)%:R * u < 1 ->
  near j y x a -> near k y' x' a' -> near (j + k) (y * y') (x * x') (a * a').
Proof.
move=> jk1 [yx xa] N'; have y'a' := near_size N'; case: N' => yx' xa'.
split; last by rewrite normrM ler_pmul.
have -> : y * y' - x * x' = (y - x) * y' + x * (y' - x').
  by rewrite mulrBl mulrBr addrA subrK.
apply: le_trans (ler_norm_add _ _) _; rewrite !normrM.
apply: le_trans (ler_add (ler_pmul _ _ yx y'a') (ler_pmul _ _ xa yx')) _ => //.
have -> : gamma j * a * ((1 + gamma k) * a') + a * (gamma k * a') =
    ((1 + gamma j) * (1 + gamma k) - 1) * (a * a').
  rewrite mulrACA [a * (_ * _)]mulrCA -mulrDl; congr (_ * _).
  by rewrite [in RHS]mulrDl mul1r addrAC [1 + _]addrC addrK addrC.
rewrite ler_wpmul2r ?ler_subl_addl ?gammaD //.
by rewrite mulr_ge0 ?(le_trans _ xa) ?(le_trans _ xa').
Qed.

Lemma near_round k y x a d : `|d| <= u -> k.+1%:R * u < 1 ->
  near k y x a -> near k.+1 (y * (1 + d)) x a.
Proof.
move=> du k1 N; rewrite -[x]mulr1 -[a]mulr1 -addn1.
apply: nearM; rewrite ?addn1 //.
have u1 := fewer (isT : 1 <= k.+1)%N k1.
by split; rewrite ?normr1 // addrC addKr mulr1 (le_trans du) ?gamma_1.
Qed.

(* A product of k factors 1 + d, |d| <= u, is within gamma k of 1.            *)
Theorem product_bound (d : seq F) : (size d)%:R * u < 1 ->
  (forall i, i \in d -> `|i| <= u) ->
  `|\prod_(i <- d) (1 + i) - 1| <= gamma (size d).
Proof.
move=> k1 du; rewrite -[X in _ <= X]mulr1.
have [] // : near (size d) (\prod_(i <- d) (1 + i)) 1 1.
elim: d k1 du => [|i d IH] /= k1 du.
  by rewrite big_nil; have := near_exact 1; rewrite normr1.
rewrite big_cons mulrC; apply: near_round; rewrite ?du ?mem_head //.
by apply: IH => [|j jd]; [apply: fewer k1 | rewrite du // in_cons jd orbT].
Qed.
End Gamma.

(* Programs without subtraction, and what a machine makes of them.            *)
Section Formula.
Variable A : Type.

Inductive formula :=
| Zero
| Entry of A
| Add of formula & formula
| Mul of formula & formula.

Fixpoint roundings f :=
  match f with
  | Zero | Entry _ => 0%N
  | Add g h => (maxn (roundings g) (roundings h)).+1
  | Mul g h => (roundings g + roundings h).+1
  end.

Variable F : realFieldType.
Implicit Types (u : F) (x : A -> F).

Fixpoint value x f : F :=
  match f with
  | Zero => 0
  | Entry a => x a
  | Add g h => value x g + value x h
  | Mul g h => value x g * value x h
  end.

Lemma eq_value x y f : x =1 y -> value x f = value y f.
Proof. by move=> xy; elim: f => //= g -> h ->. Qed.

Inductive computed u x : formula -> F -> Prop :=
| Computed_zero : computed u x Zero 0
| Computed_entry a : computed u x (Entry a) (x a)
| Computed_add g h y z d : `|d| <= u -> computed u x g y ->
    computed u x h z -> computed u x (Add g h) ((y + z) * (1 + d))
| Computed_mul g h y z d : `|d| <= u -> computed u x g y ->
    computed u x h z -> computed u x (Mul g h) (y * z * (1 + d)).

Lemma formula_near u x f y : 0 <= u -> (roundings f)%:R * u < 1 ->
  computed u x f y ->
  near u (roundings f) y (value x f) (value (fun a => `|x a|) f).
Proof.
move=> H_u k1 C; elim: C k1 => {f y} /=.
- by move=> _; have := near_exact u 0; rewrite normr0.
- by move=> a _; apply: near_exact.
- move=> g h y z d du _ IHg _ IHh k1; have k1' := fewer H_u (leqnSn _) k1.
  apply: near_round => //; apply: nearD.
    by apply: near_le (leq_maxl _ _) k1' (IHg (fewer H_u (leq_maxl _ _) k1')).
  by apply: near_le (leq_maxr _ _) k1' (IHh (fewer H_u (leq_maxr _ _) k1')).
- move=> g h y z d du _ IHg _ IHh k1; have k1' := fewer H_u (leqnSn _) k1.
  apply: near_round => //; apply: nearM => //.
    by apply: IHg (fewer H_u (leq_addr _ _) k1').
  by apply: IHh (fewer H_u (leq_addl _ _) k1').
Qed.

(* Whatever is computed by sums and products, in any nesting, with at most K  *)
(* roundings on a path, is within gamma K times the same formula of absolute  *)
(* values.                                                                    *)
Theorem formula_bound u x f y K : 0 <= u -> (roundings f <= K)%N ->
  K%:R * u < 1 -> computed u x f y ->
  `|y - value x f| <= gamma u K * value (fun a => `|x a|) f.
Proof.
move=> H_u fK K1 C; have N := formula_near H_u (fewer H_u fK K1) C.
by have [] := near_le H_u fK K1 N.
Qed.

(* A rounding function, applied after every operation, is such a machine: the *)
(* hypothesis [computed] can be met for every formula and all entries.        *)
Fixpoint rounded (fl : F -> F) x f : F :=
  match f with
  | Zero => 0
  | Entry a => x a
  | Add g h => fl (rounded fl x g + rounded fl x h)
  | Mul g h => fl (rounded fl x g * rounded fl x h)
  end.

Lemma standard_model u (fl : F -> F) a : `|fl a - a| <= u * `|a| -> 0 <= u ->
  exists2 d, `|d| <= u & fl a = a * (1 + d).
Proof.
have [->|a0] := eqVneq a 0.
  rewrite subr0 normr0 mulr0 normr_le0 => /eqP -> u0.
  by exists 0; rewrite ?normr0 ?mul0r.
move=> fla u0; exists ((fl a - a) / a).
  by rewrite normrM normfV ler_pdivr_mulr ?normr_gt0.
by rewrite mulrDr mulr1 mulrC divfK // addrC subrK.
Qed.

Lemma rounded_computed u (fl : F -> F) x f : 0 <= u ->
  (forall a, `|fl a - a| <= u * `|a|) -> computed u x f (rounded fl x f).
Proof.
move=> u0 H_fl; elim: f => /= [|a|g IHg h IHh|g IHg h IHh]; try by constructor.
  have [d du ->] := standard_model (H_fl (rounded fl x g + rounded fl x h)) u0.
  exact: Computed_add.
have [d du ->] := standard_model (H_fl (rounded fl x g * rounded fl x h)) u0.
exact: Computed_mul.
Qed.
End Formula.
Arguments Zero {A}.

(* Orders of summation.                                                       *)
Inductive tree (I : Type) := Empty | One of I | Two of tree I & tree I.
Arguments Empty {I}.

Section Order.
Variables (I : finType) (A : Type).

Fixpoint leaves (T : tree I) : seq I :=
  match T with
  | Empty => [::]
  | One i => [:: i]
  | Two a b => leaves a ++ leaves b
  end.

Fixpoint height (T : tree I) :=
  match T with
  | Empty => 0%N
  | One _ => 1%N
  | Two a b => (maxn (height a) (height b)).+1
  end.

(* T sums each i of B once, and no i twice; no leaf is deeper than k - 1.  It *)
(* may hold others than B, where the sum has zeros (masked scores).           *)
Definition orders (T : tree I) (B : pred I) k :=
  [&& uniq (leaves T), [forall i, B i ==> (i \in leaves T)]
    & (height T <= k)%N].

Fixpoint total (T : tree I) (f : I -> formula A) : formula A :=
  match T with
  | Empty => Zero
  | One i => f i
  | Two a b => Add (total a f) (total b f)
  end.

Lemma roundings_total T f k : (forall i, roundings (f i) <= k.+1)%N ->
  (roundings (total T f) <= height T + k)%N.
Proof.
move=> fk; elim: T => //= a IHa b IHb; rewrite addSn ltnS geq_max.
by rewrite (leq_trans IHa) ?(leq_trans IHb) // leq_add2r ?leq_maxr ?leq_maxl.
Qed.

Lemma value_total (F : realFieldType) (x : A -> F) T f B k : orders T B k ->
  (forall i, ~~ B i -> value x (f i) = 0) ->
  value x (total T f) = \sum_(i | B i) value x (f i).
Proof.
case/and3P => uT /forallP BT _ f0.
have -> : value x (total T f) = \sum_(i <- leaves T) value x (f i).
  elim: T {uT BT} => /= [|i|a IHa b IHb]; rewrite ?big_nil ?big_seq1 //.
  by rewrite big_cat IHa IHb.
rewrite big_uniq // [RHS]big_mkcond [LHS]big_mkcond; apply: eq_bigr => i _.
case: ifP (BT i) => [_ _|_]; first by case: ifPn => // /f0.
by rewrite implybF => /negPf ->.
Qed.

(* One term after the other: every sum has an order.                          *)
Fixpoint comb (s : seq I) : tree I :=
  match s with
  | [::] => Empty
  | [:: i] => One i
  | i :: s' => Two (One i) (comb s')
  end.

Lemma orders_comb s (B : pred I) k : uniq s -> (forall i, B i -> i \in s) ->
  (size s <= k)%N -> orders (comb s) B k.
Proof.
have L l : leaves (comb l) = l by elim: l => // i [|j l] //= ->.
have H l : (height (comb l) <= size l)%N.
  by elim: l => // i [|j l] // IH; rewrite /= ltnS geq_max IH.
move=> us Bs sk; apply/and3P; split; rewrite ?L ?(leq_trans (H s)) //.
by apply/forallP => i; apply/implyP/Bs.
Qed.
End Order.

Section Dot.
Variables (F : realFieldType) (u : F) (k : nat) (x y : 'I_k -> F).

Definition dot (T : tree 'I_k) : formula ('I_k + 'I_k) :=
  total T (fun i => Mul (Entry (inl i)) (Entry (inr i))).

Definition factors (a : 'I_k + 'I_k) :=
  match a with inl i => x i | inr i => y i end.

(* A dot product of k terms, summed in any order, is within                   *)
(* gamma k * sum |x_i||y_i|.                                                  *)
Theorem dot_bound T z (H_u : 0 <= u) (H_k : k%:R * u < 1)
  (H_T : orders T predT k) (H_z : computed u factors (dot T) z) :
  `|z - \sum_i x i * y i| <= gamma u k * \sum_i `|x i| * `|y i|.
Proof.
have R : (roundings (dot T) <= k)%N.
  have /and3P[_ _ Tk] := H_T.
  by apply: leq_trans (roundings_total (k := 0) _ _) _; rewrite ?addn0.
by have := formula_bound H_u R H_k H_z; rewrite !(value_total H_T).
Qed.
End Dot.

(* The normalised read: o = num / den, and one more rounding.                 *)
Section Read.
Variables (F : realFieldType) (u : F).

Lemma quotient_bound (num den num' den' h e : F) :
  `|num' - num| <= h -> `|den' - den| <= e -> e < `|den| ->
  [/\ den != 0, den' != 0 &
   `|num' / den' - num / den| <=
     (h + `|num / den| * e) / `|den| / (1 - e / `|den|)].
Proof.
move=> H_num H_den H_e; have e0 := le_trans (normr_ge0 _) H_den.
have den0 : den != 0 by rewrite -normr_gt0 (le_lt_trans e0).
have low : `|den| - e <= `|den'|.
  rewrite ler_subl_addr -[X in `|X|](subrK den') addrC.
  by rewrite (le_trans (ler_norm_add _ _)) // ler_add2l distrC.
have pos : 0 < `|den| - e by rewrite subr_gt0.
have den'0 : den' != 0 by rewrite -normr_gt0 (lt_le_trans pos).
split=> //; have -> : num' / den' - num / den =
    (num' - num + num / den * (den - den')) / den'.
  rewrite mulrBr divfK // addrA subrK mulrBl mulfK //.
have -> x : x / `|den| / (1 - e / `|den|) = x / (`|den| - e).
  by rewrite -mulrA -invfM mulrBr mulr1 mulrCA divff ?mulr1 ?normr_eq0.
rewrite normrM normfV; apply: ler_pmul => //; first by rewrite invr_ge0.
  rewrite (le_trans (ler_norm_add _ _)) // normrM ler_add // ler_wpmul2l //.
  by rewrite distrC.
by rewrite lef_pinv ?posrE ?(lt_le_trans pos).
Qed.

(* If num' and den' are off by g A_num and g A_den, and den' cannot be 0, the *)
(* rounded quotient is off by no more than this.  Beside A_num stands a       *)
(* factor 1 + u that bounds.py does not have ...                              *)
Theorem read_bound (num den num' den' o A_num A_den g d : F)
  (H_o : o = num / den) (H_d : `|d| <= u)
  (H_num : `|num' - num| <= g * A_num)
  (H_den : `|den' - den| <= g * A_den) (H_full : g * A_den < `|den|) :
  `|num' / den' * (1 + d) - o| <=
    (g * ((1 + u) * A_num + `|o| * A_den) / `|den| + u * `|o|) /
    (1 - g * A_den / `|den|).
Proof.
have H : `|num' * (1 + d) - num| <= g * ((1 + u) * A_num) + u * `|num|.
  have -> : num' * (1 + d) - num = (num' - num) * (1 + d) + num * d.
    by rewrite mulrBl [num * _]mulrDr mulr1 opprD addrA subrK.
  rewrite (le_trans (ler_norm_add _ _)) // !normrM [u * _]mulrC.
  rewrite ler_add ?ler_wpmul2l // [g * _]mulrCA [(1 + u) * _]mulrC ler_pmul //.
  by rewrite (le_trans (ler_norm_add _ _)) // normr1 ler_add2l.
have [den0 _] := quotient_bound H H_den H_full; rewrite -H_o mulrAC.
have -> : u * `|num| = u * `|o| * `|den|.
  by rewrite H_o normrM normfV -mulrA divfK ?normr_eq0.
rewrite [_ + _ * `|den| + _]addrAC [`|o| * (g * _)]mulrCA -mulrDr.
by rewrite (mulrDl _ _ `|den|^-1) mulfK ?normr_eq0.
Qed.

(* ... but if g pays for the rounding of the quotient too, neither 1 + u nor  *)
(* the term u |o| of bounds.py is needed.                                     *)
Theorem read_bound_spare (num den num' den' o A_num A_den g d : F)
  (H_o : o = num / den)
  (H_num : `|num' * (1 + d) - num| <= g * A_num)
  (H_den : `|den' - den| <= g * A_den) (H_full : g * A_den < `|den|) :
  `|num' / den' * (1 + d) - o| <=
    g * (A_num + `|o| * A_den) / `|den| / (1 - g * A_den / `|den|).
Proof.
have [_ _] := quotient_bound H_num H_den H_full.
by rewrite -H_o mulrAC [`|o| * (g * _)]mulrCA -mulrDr.
Qed.

(* Without one or the other the formula of bounds.py would be false: the      *)
(* bound with 1 + u is attained, whatever u and g are.                        *)
Theorem read_bound_needs_1_plus_u (g : F) : 0 < u -> 0 < g < 1 ->
  exists num den num' den' A_num A_den d : F,
  [/\ [/\ `|d| <= u, `|num' - num| <= g * A_num,
          `|den' - den| <= g * A_den & g * A_den < `|den|],
      `|num' / den' * (1 + d) - num / den| =
        (g * ((1 + u) * A_num + `|num / den| * A_den) / `|den| +
         u * `|num / den|) / (1 - g * A_den / `|den|) &
      (g * (A_num + `|num / den| * A_den) / `|den| + u * `|num / den|) /
        (1 - g * A_den / `|den|) < `|num' / den' * (1 + d) - num / den|].
Proof.
move=> u0 /andP[g0 g1]; have ge0 := ltW g0; have ue0 := ltW u0.
exists 1, 1, (1 + g), (1 - g), 1, 1, u.
have n1 : 1 - g != 0 :> F by rewrite subr_eq0 eq_sym lt_eqF.
have E : (1 + g) / (1 - g) * (1 + u) - 1 = (g * (1 + u + 1) + u) / (1 - g).
  apply: (mulIf n1); rewrite divfK // mulrBl mulrAC divfK // mul1r.
  rewrite mulrDl mul1r opprB [g * (_ + 1)]mulrDr mulr1 [1 + u + _]addrC.
  by rewrite addrACA [1 + u]addrC addrK.
have P : 0 <= (1 + g) / (1 - g) * (1 + u) - 1.
  rewrite E divr_ge0 ?subr_ge0 ?(ltW g1) //.
  by rewrite addr_ge0 // mulr_ge0 // !addr_ge0 ?ler01.
rewrite !divr1 normr1 !mulr1 !divr1 ger0_norm //; split=> //.
  by rewrite [1 + g]addrC [1 - g]addrC !addrK normrN !ger0_norm.
rewrite E ltr_pmul2r ?invr_gt0 ?subr_gt0 // ltr_add2r ltr_pmul2l //.
by rewrite ltr_add2r ltr_addl.
Qed.
End Read.

(* Linearized attention, row t and column j of the output.                    *)
Section LinearAttention.
Variables (F : realFieldType) (u : F) (n r : nat) (P : nat) (t : 'I_n).

(* The numbers that go into it; those of a denominator have no values.        *)
Inductive entry :=
| In_q of 'I_r
| In_k of 'I_n & 'I_r
| In_v of 'I_n
| In_S of 'I_r.

Definition entries m (fq fk : 'M[F]_(n, r)) (v : 'M[F]_(n, m))
    (S : 'M[F]_(r, m)) j a : F :=
  match a with
  | In_q i => fq t i
  | In_k s i => fk s i
  | In_v s => v s j
  | In_S i => S i j
  end.

(* f is the numerator (values) or the denominator, as a formula: for all      *)
(* entries, hence also for their absolute values.                             *)
Definition formula_of (values : bool) (f : formula entry) :=
  forall x : entry -> F, value x f =
    \sum_i x (In_q i) * (x (In_S i) +
      \sum_(s < n | seen P t s)
         if values then x (In_k s i) * x (In_v s) else x (In_k s i)).

Lemma formula_num m fq fk (v : 'M_(n, m)) S j f : formula_of true f ->
  value (entries fq fk v S j) f = num fq fk v S P t 0 j.
Proof.
move=> ->; rewrite !mxE; apply: eq_bigr => i _; rewrite !mxE summxE.
congr (_ * (_ + _)); apply: eq_bigr => s _.
by rewrite !mxE big_ord1 !mxE.
Qed.

Lemma formula_den gq gk (v : 'M_(n, 1)) z f : formula_of false f ->
  value (entries gq gk v z 0) f = den gq gk z P t.
Proof.
move=> ->; rewrite /den !mxE; apply: eq_bigr => i _; rewrite !mxE summxE.
by congr (_ * (_ + _)); apply: eq_bigr => s _; rewrite !mxE.
Qed.

Local Notation abs X := (map_mx Num.norm X).

Lemma entries_abs m fq fk (v : 'M_(n, m)) S j a :
  `|entries fq fk v S j a| = entries (abs fq) (abs fk) (abs v) (abs S) j a.
Proof. by case: a => *; rewrite /= mxE. Qed.

Section Bound.
Variables (m : nat) (fq fk gq gk : 'M[F]_(n, r)) (v : 'M[F]_(n, m)).
Variables (S : 'M[F]_(r, m)) (z : 'cV[F]_r) (j : 'I_m).
Variables (f_num f_den : formula entry) (num' den' d : F).

Local Notation K := (n + r + 2)%N.
Local Notation num_ := (num fq fk v S P t 0 j).
Local Notation den_ := (den gq gk z P t).

Definition A_num := num (abs fq) (abs fk) (abs v) (abs S) P t 0 j.
Definition A_den := den (abs gq) (abs gk) (abs z) P t.

Hypotheses (H_u : 0 <= u) (H_K : K%:R * u < 1).
Hypothesis H_f_num : formula_of true f_num.
Hypothesis H_f_den : formula_of false f_den.
Hypothesis H_num : computed u (entries fq fk v S j) f_num num'.
Hypothesis H_den : computed u (entries gq gk (const_mx 1) z 0) f_den den'.
Hypothesis H_K_num : (roundings f_num <= n + r + 1)%N.
Hypothesis H_K_den : (roundings f_den <= n + r + 2)%N.
Hypothesis H_d : `|d| <= u.

Lemma num_near : near u (n + r + 1) num' num_ A_num.
Proof.
have H_K1 : (n + r + 1)%:R * u < 1.
  by apply: fewer H_K => //; rewrite leq_add2l.
have := formula_near H_u (fewer H_u H_K_num H_K1) H_num.
move/(near_le H_u H_K_num H_K1).
by rewrite (eq_value _ (entries_abs _ _ _ _ _)) !formula_num.
Qed.

Lemma den_near : near u K den' den_ A_den.
Proof.
have := formula_near H_u (fewer H_u H_K_den H_K) H_den.
move/(near_le H_u H_K_den H_K).
by rewrite (eq_value _ (entries_abs _ _ _ _ _)) !formula_den.
Qed.

(* Unnormalised: |num' - o| <= gamma K * A_num.                               *)
Theorem float_bound_unnormalised :
  `|num' - linear_attention fq fk gq gk v S z P false t j| <= gamma u K * A_num.
Proof.
rewrite mxE; have le : (n + r + 1 <= K)%N by rewrite leq_add2l.
by have [] := near_le H_u le H_K num_near.
Qed.

(* Else the bound is infinite: nothing can be said.                           *)
Hypothesis H_full : gamma u K * A_den < `|den_|.

(* Any program for numerator and denominator with no more roundings than the  *)
(* forms have (n + r + 1, and n + r + 2 for the denominator) divides by no 0, *)
(* and its rounded quotient is this near to o ...                             *)
Theorem float_bound_tight :
  let o := linear_attention fq fk gq gk v S z P true t j in
  [/\ den_ != 0, den' != 0 & `|num' / den' * (1 + d) - o| <=
      gamma u K * (A_num + `|o| * A_den) / `|den_| /
      (1 - gamma u K * A_den / `|den_|)].
Proof.
move=> o; have H_o : o = num_ / den_ by rewrite /o !mxE mulrC.
have [H_n _] : near u K (num' * (1 + d)) num_ A_num.
  rewrite addnS; apply: near_round => //; rewrite -?addnS //; exact: num_near.
have [H_dn _] := den_near.
have [? ? _] := quotient_bound H_n H_dn H_full.
by split=> //; apply: read_bound_spare H_o H_n H_dn H_full.
Qed.

(* ... hence within what bounds.py computes.                                  *)
Theorem float_bound :
  let o := linear_attention fq fk gq gk v S z P true t j in
  [/\ den_ != 0, den' != 0 & `|num' / den' * (1 + d) - o| <=
      (gamma u K * (A_num + `|o| * A_den) / `|den_| + u * `|o|) /
      (1 - gamma u K * A_den / `|den_|)].
Proof.
have [den0 den'0 B] := float_bound_tight; split=> //; apply: le_trans B _.
rewrite ler_pmul2r ?ler_addl ?mulr_ge0 // invr_gt0 subr_gt0.
by rewrite ltr_pdivr_mulr ?mul1r ?normr_gt0.
Qed.
End Bound.

(* The forms of the library.  T_r sums over features, T_s and T_n over        *)
(* tokens, T_q over the features of one score; all may differ everywhere.     *)
Section Forms.
Implicit Types (values : bool) (past : pred 'I_n) (x : entry -> F).

(* The state: b_KV (or S) and the tokens of the past, in any order; with      *)
(* [values] a column of S, else z.                                            *)
Definition written values past i (a : option 'I_n) : formula entry :=
  match a with
  | None => Entry (In_S i)
  | Some s =>
      if seen P t s && past s then
        if values then Mul (Entry (In_k s i)) (Entry (In_v s))
        else Entry (In_k s i)
      else Zero
  end.

Definition state_form values past T_r T_s : formula entry :=
  total T_r (fun i =>
    Mul (Entry (In_q i)) (total (T_s i) (written values past i))).

Definition score (T : tree 'I_r) s : formula entry :=
  total T (fun i => Mul (Entry (In_q i)) (Entry (In_k s i))).

Definition by_score past (s : 'I_n) := seen P t s && ~~ past s.

Definition scores_form values past T_n T_q : formula entry :=
  total T_n (fun s : 'I_n =>
    if by_score past s then
      if values then Mul (score (T_q s) s) (Entry (In_v s)) else score (T_q s) s
    else Zero).

Definition in_state past (a : option 'I_n) :=
  if a is Some s then seen P t s && past s else true.

Lemma value_state values past T_r T_s x k :
  orders T_r predT r -> (forall i, orders (T_s i) (in_state past) k) ->
  value x (state_form values past T_r T_s) =
  \sum_i x (In_q i) * (x (In_S i) + \sum_(s < n | seen P t s && past s)
     if values then x (In_k s i) * x (In_v s) else x (In_k s i)).
Proof.
move=> H_r H_s; rewrite (value_total H_r) //; apply: eq_bigr => i _ /=.
rewrite (value_total (H_s i)) => [|[s /negPf /= ->|] //].
congr (_ * _); rewrite (bigD1 None) //=; congr (_ + _).
rewrite (reindex_omap Some id) => [|[s|] //] /=.
apply: eq_big => [s|s]; first by rewrite eqxx !andbT.
by rewrite !andbT eqxx andbT => ->; case: values.
Qed.

Lemma value_scores values past T_n T_q x k :
  orders T_n (by_score past) k ->
  (forall s, orders (T_q s) predT r) ->
  value x (scores_form values past T_n T_q) =
  \sum_i x (In_q i) * \sum_(s < n | by_score past s)
     if values then x (In_k s i) * x (In_v s) else x (In_k s i).
Proof.
move=> H_n H_q; rewrite (value_total H_n) => [|s /negPf -> //].
under [RHS]eq_bigr do rewrite big_distrr; rewrite exchange_big /=.
apply: eq_bigr => s ->; case: values => /=; rewrite (value_total (H_q s)) //.
by rewrite big_distrl; apply: eq_bigr => i _; rewrite mulrA.
Qed.

Lemma roundings_state values past T_r T_s k :
  orders T_r predT r -> (forall i, orders (T_s i) (in_state past) k) ->
  (roundings (state_form values past T_r T_s) <= r + k)%N.
Proof.
case/and3P=> _ _ H_r H_s.
apply: leq_trans (roundings_total (k := k) _ _) _; last by rewrite leq_add2r.
move=> i /=; rewrite ltnS; have /and3P[_ _ H_i] := H_s i.
apply: leq_trans (roundings_total (k := 0) _ _) _; last by rewrite addn0.
by case=> [s|] //=; case: ifP => //; case: values.
Qed.

Lemma roundings_scores values past T_n T_q k :
  orders T_n (by_score past) k ->
  (forall s, orders (T_q s) predT r) ->
  (roundings (scores_form values past T_n T_q) <= k + r)%N.
Proof.
case/and3P=> _ _ H_n H_q.
apply: leq_trans (roundings_total (k := r) _ _) _; last by rewrite leq_add2r.
move=> s; have R : (roundings (score (T_q s) s) <= r)%N.
  have /and3P[_ _ H_s] := H_q s.
  by apply: leq_trans (roundings_total (k := 0) _ _) _; rewrite ?addn0.
by case: ifP => //; case: values => _ /=; rewrite ?addn0 ?ltnS // (leq_trans R).
Qed.

(* All tokens read from a state: the definition, the recurrence, and chunks   *)
(* within a prefix.                                                           *)
Theorem state_form_ok values T_r T_s :
  orders T_r predT r -> (forall i, orders (T_s i) (in_state predT) n.+1) ->
  formula_of values (state_form values predT T_r T_s) /\
  (roundings (state_form values predT T_r T_s) <= n + r + 1)%N.
Proof.
move=> H_r H_s; split; last first.
  by rewrite -addnA addnCA addn1; apply: roundings_state.
move=> x; rewrite (value_state _ _ H_r H_s); apply: eq_bigr => i _.
by under eq_bigl do rewrite andbT.
Qed.

(* Some tokens read by their scores, those of [past] from a state: the        *)
(* quadratic form (no past), and chunks (past = all before the chunk, so that *)
(* at most n - 1 tokens and S are summed in the state).                       *)
Theorem scores_form_ok values past T_n T_q T_r T_s :
  let f := Add (scores_form values past T_n T_q)
               (state_form values past T_r T_s) in
  orders T_n (by_score past) n ->
  (forall s, orders (T_q s) predT r) ->
  orders T_r predT r -> (forall i, orders (T_s i) (in_state past) n) ->
  formula_of values f /\ (roundings f <= n + r + 1)%N.
Proof.
move=> f H_n H_q H_r H_s; split; last first.
  rewrite addn1 ltnS geq_max roundings_scores //=.
  by rewrite addnC roundings_state.
move=> x; rewrite /= (value_state _ _ H_r H_s) (value_scores _ _ H_n H_q).
rewrite -big_split; apply: eq_bigr => i _ /=.
rewrite -mulrDr addrCA [in RHS](bigID past) /=; congr (_ * (_ + _)).
exact: addrC.
Qed.
End Forms.
End LinearAttention.

(* The rules of running_error.py, but for underflow and for the rounding of   *)
(* the bounds themselves.  v is the execution at hand, v' any other, V the    *)
(* truth; both are within the bound.                                          *)
Section RunningError.
Variables (F : realFieldType) (u : F).
Hypotheses (H_u : 0 <= u) (H_u1 : u < 1).

Lemma size_le (a b e : F) : `|a - b| <= e -> `|a| <= `|b| + e.
Proof.
move=> ab; rewrite -[X in `|X|](subrK b) addrC.
by rewrite (le_trans (ler_norm_add _ _)) // ler_add2l.
Qed.

(* If all executions come within p of V before the last rounding, they are    *)
(* within p + gamma 1 (|v| + 2p) after it.                                    *)
Theorem running_round (V s s' v v' p d d' : F)
  (H_v : v = s * (1 + d)) (H_d : `|d| <= u) (H_s : `|s - V| <= p)
  (H_v' : v' = s' * (1 + d')) (H_d' : `|d'| <= u) (H_s' : `|s' - V| <= p) :
  `|v' - V| <= p + gamma u 1 * (`|v| + (p + p)).
Proof.
have p0 := le_trans (normr_ge0 _) H_s.
have g1 : u <= gamma u 1 by rewrite gamma_1 ?mul1r.
have u1 : 0 < 1 - u by rewrite subr_gt0.
have sv : u * `|s| <= gamma u 1 * `|v|.
  rewrite /gamma mul1r -mulrA ler_wpmul2l // mulrC ler_pdivl_mulr //.
  rewrite H_v normrM ler_wpmul2l // ler_subl_addr -[X in X <= _]normr1.
  rewrite -[X in `|X| <= _](addrK d) (le_trans (ler_norm_sub _ _)) //.
  by rewrite ler_add2l.
have s's : `|s'| <= `|s| + (p + p).
  rewrite addrA (le_trans (size_le H_s')) // ler_add2r.
  by rewrite (size_le (e := p)) // distrC.
have -> : v' - V = s' - V + s' * d' by rewrite H_v' mulrDr mulr1 addrAC.
rewrite (le_trans (ler_norm_add _ _)) // ler_add // normrM mulrC.
apply: le_trans (ler_pmul _ _ H_d' s's) _ => //.
by rewrite !mulrDr !ler_add // ler_wpmul2r.
Qed.

(* The spread p of a sum, a product and a quotient.                           *)
Theorem running_add (A B a' b' e f : F) :
  `|a' - A| <= e -> `|b' - B| <= f -> `|a' + b' - (A + B)| <= e + f.
Proof.
by move=> aA bB; rewrite opprD addrACA (le_trans (ler_norm_add _ _)) ?ler_add.
Qed.

Theorem running_mul (A B a b a' b' e f : F) :
  `|a - A| <= e -> `|a' - A| <= e -> `|b - B| <= f -> `|b' - B| <= f ->
  `|a' * b' - A * B| <= (`|a| + e) * f + (`|b| + f) * e + e * f.
Proof.
move=> aA a'A bB b'B.
have -> : a' * b' - A * B = A * (b' - B) + B * (a' - A) + (a' - A) * (b' - B).
  rewrite [B * _]mulrC -addrA -mulrDr [B + _]addrC subrK.
  by rewrite mulrBr mulrBl [in RHS]addrC addrA subrK.
have sA : `|A| <= `|a| + e by rewrite (size_le (e := e)) // distrC.
have sB : `|B| <= `|b| + f by rewrite (size_le (e := f)) // distrC.
rewrite (le_trans (ler_norm_add _ _)) // ler_add ?normrM ?ler_pmul //.
by rewrite (le_trans (ler_norm_add _ _)) // !normrM ler_add ?ler_pmul.
Qed.

Theorem running_div (A B a b a' b' e f : F) :
  `|a - A| <= e -> `|a' - A| <= e -> `|b - B| <= f -> `|b' - B| <= f ->
  f + f < `|b| ->
  [/\ B != 0, b' != 0 & `|a' / b' - A / B| <=
      (e + (`|a| + e) / (`|b| - f) * f) / (`|b| - (f + f))].
Proof.
move=> aA a'A bB b'B ff; have f0 := le_trans (normr_ge0 _) bB.
have sB : `|b| - f <= `|B| by rewrite ler_subl_addr size_le.
have sb' : `|b| - (f + f) <= `|b'|.
  rewrite opprD addrA ler_subl_addr (le_trans sB) // (size_le (e := f)) //.
  by rewrite distrC.
have pb' : 0 < `|b| - (f + f) by rewrite subr_gt0.
have pB : 0 < `|b| - f.
  by rewrite (lt_le_trans pb') // ler_add2l ler_opp2 ler_addl.
have B0 : B != 0 by rewrite -normr_gt0 (lt_le_trans pB).
have b'0 : b' != 0 by rewrite -normr_gt0 (lt_le_trans pb').
split=> //; have -> : a' / b' - A / B = (a' - A + A / B * (B - b')) / b'.
  by rewrite mulrBr divfK // addrA subrK mulrBl mulfK.
rewrite normrM normfV ler_pmul ?invr_ge0 //; last first.
  by rewrite lef_pinv ?posrE // (lt_le_trans pb').
rewrite (le_trans (ler_norm_add _ _)) // ler_add // !normrM normfV.
rewrite ler_pmul ?mulr_ge0 ?invr_ge0 // 1?distrC //.
rewrite ler_pmul ?invr_ge0 //; first by rewrite (size_le (e := e)) // distrC.
by rewrite lef_pinv ?posrE // (lt_le_trans pB).
Qed.
End RunningError.

(* The hypotheses can be met.                                                 *)
Section Instances.

(* No rounding at all: u = 0.                                                 *)
Lemma computed_exact (A : Type) (F : realFieldType) (x : A -> F) f :
  computed 0 x f (value x f).
Proof.
have E a : a = a * (1 + 0) :> F by rewrite addr0 mulr1.
elim: f => /= [|a|g Cg h Ch|g Cg h Ch]; try by constructor.
  by rewrite [X in computed _ _ _ X]E; apply: Computed_add; rewrite ?normr0.
by rewrite [X in computed _ _ _ X]E; apply: Computed_mul; rewrite ?normr0.
Qed.

(* A tree for every sum of every form, at every shape.                        *)
Lemma orders_all k (B : pred 'I_k) : orders (comb (enum 'I_k)) B k.
Proof.
apply: orders_comb; rewrite ?enum_uniq ?size_enum_ord // => i.
by rewrite mem_enum.
Qed.

(* S, then the tokens of the past.                                            *)
Definition in_turn n (past : pred 'I_n) : tree [finType of option 'I_n] :=
  comb (None :: [seq Some s | s <- enum past]).

Lemma orders_in_turn n P (t : 'I_n) (past : pred 'I_n) :
  orders (in_turn past) (in_state P t past) #|past|.+1.
Proof.
have inj : injective (@Some 'I_n) by move=> s s' [].
apply: orders_comb; last by rewrite /= size_map cardE.
  rewrite /= map_inj_uniq // enum_uniq andbT.
  by apply/negP => /mapP [].
move=> [s|] //= /andP[_ ps].
by rewrite in_cons /= mem_map // mem_enum.
Qed.

Lemma state_form_orders n r P (t : 'I_n) :
  orders (comb (enum 'I_r)) predT r /\
  orders (in_turn predT) (in_state P t predT) n.+1.
Proof. by rewrite orders_all -[in n.+1](card_ord n) orders_in_turn. Qed.

(* The past may be any but the whole text: a token is not in its own past.    *)
Lemma scores_form_orders n r P (t : 'I_n) (past : pred 'I_n) : ~~ past t ->
  [/\ orders (comb (enum 'I_n)) (by_score P t past) n,
      orders (comb (enum 'I_r)) predT r &
      orders (in_turn past) (in_state P t past) n].
Proof.
move=> pt; rewrite !orders_all; split=> //.
have /and3P[u c h] := orders_in_turn P t past; apply/and3P; split=> //.
apply: leq_trans h _; rewrite -[X in (_ <= X)%N](card_ord n).
by apply/proper_card/properP; split; [apply/subsetP | exists t].
Qed.

Variables (F : realFieldType) (u : F).
Let one : 'M[F]_1 := const_mx 1.
Let T_r : tree 'I_1 := One ord0.
Let T_s (i : 'I_1) : tree [finType of option 'I_1] :=
  Two (One None) (One (Some ord0)).
Let f b : formula (entry 1 1) := state_form 0 (ord0 : 'I_1) b predT T_r T_s.

(* One token, one feature, every number 1, and every operation rounded up as  *)
(* far as may be: the hypotheses of float_bound hold.                         *)
Lemma float_bound_instance (H_u : 0 <= u) (H_u8 : 8%:R * u < 1) :
  [/\ (1 + 1 + 2)%:R * u < 1,
      formula_of F 0 ord0 true (f true) /\ formula_of F 0 ord0 false (f false),
      computed u (entries ord0 one one one 0 0) (f true) ((1 + u) ^+ 3) /\
      computed u (entries ord0 one one one 0 0) (f false) ((1 + u) ^+ 2),
      (roundings (f true) <= 1 + 1 + 1)%N /\
      (roundings (f false) <= 1 + 1 + 2)%N &
      gamma u (1 + 1 + 2) * A_den 0 (ord0 : 'I_1) one one 0 <
        `|den one one 0 0 ord0|].
Proof.
have H_r : orders T_r predT 1.
  by apply/and3P; split => //; apply/forallP => i; rewrite ord1.
have H_s i : orders (T_s i) (in_state 0 (ord0 : 'I_1) predT) 2.
  by apply/and3P; split => //; apply/forallP => -[s|] //; rewrite (ord1 s).
have [F1 R1] := @state_form_ok F _ _ 0 ord0 true _ _ H_r H_s.
have [F0 R0] := @state_form_ok F _ _ 0 ord0 false _ _ H_r H_s.
have u4 : 4%:R * u < 1 by apply: fewer H_u8.
have du : `|u| <= u by rewrite ger0_norm.
have D1 : den one one 0 0 ord0 = 1.
  rewrite /den !mxE big_ord1 !mxE summxE big_mkcond big_ord1 /= !mxE.
  by rewrite add0r mulr1.
have A1 : A_den 0 (ord0 : 'I_1) one one 0 = 1.
  rewrite -D1 /A_den; congr (den _ _ _ _ _); apply/matrixP => i k.
  - by rewrite !mxE normr1.
  - by rewrite !mxE normr1.
  by rewrite !mxE normr0.
split=> //.
- have -> : (1 + u) ^+ 3 = one ord0 ord0 * (((0 : 'M[F]_1) ord0 0 +
      one ord0 ord0 * one ord0 0 * (1 + u)) * (1 + u)) * (1 + u).
    by rewrite !mxE !mul1r add0r !exprS expr0 mulr1 mulrA.
  have -> : (1 + u) ^+ 2 = one ord0 ord0 * (((0 : 'M[F]_1) ord0 0 +
      one ord0 ord0) * (1 + u)) * (1 + u).
    by rewrite !mxE !mul1r add0r mul1r.
  pose x := entries (ord0 : 'I_1) one one one 0 0.
  split; apply: Computed_mul => //;
    try exact: (Computed_entry u x (In_q 1 ord0)).
    apply: Computed_add => //; first exact: (Computed_entry u x (In_S 1 ord0)).
    apply: Computed_mul => //.
      exact: (Computed_entry u x (In_k ord0 ord0)).
    exact: (Computed_entry u x (In_v 1 ord0)).
  apply: Computed_add => //; first exact: (Computed_entry u x (In_S 1 ord0)).
  exact: (Computed_entry u x (In_k ord0 ord0)).
rewrite D1 A1 mulr1 normr1 /gamma ltr_pdivr_mulr ?subr_gt0 // mul1r.
by rewrite ltr_subr_addr -mulrDl -natrD.
Qed.

(* u = 2^-53, that of float64, is such a u.                                   *)
Lemma float64_instance :
  let u : rat := 2%:R^-1 ^+ 53 in 0 <= u /\ 8%:R * u < 1.
Proof.
have [h0 h1] : (0 <= 2%:R^-1 :> rat) /\ (2%:R^-1 <= 1 :> rat) by [].
have H k : (4 <= k)%N ->
    (0 : rat) <= 2%:R^-1 ^+ k /\ 8%:R * 2%:R^-1 ^+ k < 1 :> rat.
  move=> k4; split; first exact: exprn_ge0.
  apply: le_lt_trans (_ : 8%:R * 2%:R^-1 ^+ 4 < 1) => //.
  by rewrite ler_wpmul2l // ler_wiexpn2l.
exact: (H 53%N isT).
Qed.
End Instances.
