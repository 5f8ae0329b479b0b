"""The truth on a tiny space, by enumeration, in plain numpy. Shares no code with the library.

A sequence is a tuple of symbols 0..V-1; the symbol V is the mask. A denoiser is a table from every partly masked tuple
to an array (L, V) of probabilities.
"""

import itertools
import math

import numpy as np
from scipy import stats

FAILURE_RATE = 1e-4
"""Chance that a right sampler fails one chi-square test. Seeds are fixed, so a failure is a finding, not noise."""


def sequences(V, L):
    return list(itertools.product(range(V), repeat=L))


def states(V, L):
    return list(itertools.product(range(V + 1), repeat=L))


def random_denoiser(V, L, seed):
    rng = np.random.default_rng(seed)
    return {xt: rng.dirichlet(np.ones(V), size=L) for xt in states(V, L)}


def random_data(V, L, seed):
    return dict(zip(sequences(V, L), np.random.default_rng(seed).dirichlet(np.ones(V**L) * 0.5), strict=True))


def chain_data(L, coupling):
    """Two symbols whose neighbours tend to agree: strongly correlated, yet no text is rare."""
    mass = {x: math.exp(coupling * sum(1 if a == b else -1 for a, b in itertools.pairwise(x))) for x in sequences(2, L)}
    return {x: m / sum(mass.values()) for x, m in mass.items()}


def subsets(items):
    return itertools.chain.from_iterable(itertools.combinations(items, n) for n in range(len(items) + 1))


def masked(xt, V):
    return [i for i, token in enumerate(xt) if token == V]


def mask_out(x0, positions, V):
    return tuple(V if i in positions else token for i, token in enumerate(x0))


def reveal_law(xt, rho, denoiser, V):
    """The law of the next state: each masked position is revealed with probability rho and drawn independently."""
    law = {}
    for S in subsets(masked(xt, V)):
        stay = len(masked(xt, V)) - len(S)
        for tokens in itertools.product(range(V), repeat=len(S)):
            xs = list(xt)
            p = rho ** len(S) * (1 - rho) ** stay
            for i, token in zip(S, tokens, strict=True):
                xs[i] = token
                p *= denoiser[xt][i, token]
            law[tuple(xs)] = law.get(tuple(xs), 0) + p
    return law


def chain_law(denoiser, alphas, V, L):
    """The law of the text after the reverse steps alphas[0] = 0 -> ... -> alphas[-1] = 1."""
    law = {(V,) * L: 1.0}
    for before, after in itertools.pairwise(alphas):
        new = {}
        rho = (after - before) / (1 - before)
        for xt, p in law.items():
            for xs, q in reveal_law(xt, rho, denoiser, V).items():
                if p * q > 0:
                    new[xs] = new.get(xs, 0) + p * q
        law = new
    return law


def masked_nll(x0, positions, denoiser, V):
    xt = mask_out(x0, positions, V)
    return -sum(math.log(denoiser[xt][i, x0[i]]) for i in positions)


def nelbo_steps(x0, denoiser, alphas, V, given=0):
    """Sum over the steps of rho E_q[-log p(x0^M | xt)]; the first `given` tokens are known and never masked."""
    L, total = len(x0) - given, 0.0
    for before, after in itertools.pairwise(alphas):
        rho = (after - before) / (1 - before)
        for M in subsets(range(given, len(x0))):
            q = (1 - before) ** len(M) * before ** (L - len(M))
            total += q * rho * masked_nll(x0, M, denoiser, V)
    return total


def nelbo_continuous(x0, denoiser, V, points=4001):
    """Integral over t of E_q[-log p(x0^M | xt)] / t with 1 - t tokens clean, by Simpson's rule."""
    L = len(x0)
    t = np.linspace(0, 1, points)[1:]
    value = np.zeros_like(t)
    for M in subsets(range(L)):
        if M:
            value += t ** (len(M) - 1) * (1 - t) ** (L - len(M)) * masked_nll(x0, M, denoiser, V)
    at_zero = sum(masked_nll(x0, (i,), denoiser, V) for i in range(L))
    from scipy.integrate import simpson

    return simpson(np.concatenate([[at_zero], value]), x=np.concatenate([[0], t]))


# --- energies and importance sampling


def random_autoregressive(V, L, seed):
    """A causal model: a table from every prefix to the law of the next symbol."""
    rng = np.random.default_rng(seed)
    return {prefix: rng.dirichlet(np.ones(V)) for n in range(L) for prefix in sequences(V, n)}


def autoregressive_of(data, V, L):
    """The causal model that is exactly the given distribution of texts."""
    model = {}
    for n in range(L):
        for prefix in sequences(V, n):
            mass = np.array([sum(p for x, p in data.items() if x[: n + 1] == (*prefix, v)) for v in range(V)])
            model[prefix] = mass / mass.sum()
    return model


def posterior_denoiser(data, V, L):
    """The best factorised denoiser: the true marginals of each token given the known ones."""
    table = {}
    for xt in states(V, L):
        fitting = {x: p for x, p in data.items() if all(k in (v, V) for k, v in zip(xt, x, strict=True))}
        marginals = np.array([[sum(p for x, p in fitting.items() if x[i] == v) for v in range(V)] for i in range(L)])
        table[xt] = marginals / marginals.sum(-1, keepdims=True)
    return table


def completions(xt, V):
    M = masked(xt, V)
    for tokens in itertools.product(range(V), repeat=len(M)):
        x0 = list(xt)
        for i, token in zip(M, tokens, strict=True):
            x0[i] = token
        yield tuple(x0)


def proposal(x0, xt, denoiser, V):
    return math.prod(denoiser[xt][i, x0[i]] for i in masked(xt, V))


def ar_weight(model, denoiser, V):
    """w = p_AR(x0) / p_theta(x0 | xt)."""
    return lambda x0, xt: math.prod(model[x0[:i]][x0[i]] for i in range(len(x0))) / proposal(x0, xt, denoiser, V)


def carry_over_weight(model, denoiser, V):
    """w = prod over masked i of p_AR(x^i | x^{<i}) / p_theta(x0 | xt)."""
    return lambda x0, xt: math.prod(model[x0[:i]][x0[i]] for i in masked(xt, V)) / proposal(x0, xt, denoiser, V)


def ebm_law(xt, denoiser, weight, V):
    """p_theta(x0 | xt) w / Z and Z."""
    mass = {x0: proposal(x0, xt, denoiser, V) * weight(x0, xt) for x0 in completions(xt, V)}
    Z = sum(mass.values())
    return {x0: m / Z for x0, m in mass.items()}, Z


def candidate_law(xt, denoiser, weight, k, V):
    """The exact law of one of k candidates, drawn from the denoiser and resampled by weight.

    By symmetry the chosen one is the first: k p(x) E[w(x) / (w(x) + w_2 + ... + w_k)], over multisets of the others.
    """
    items = list(completions(xt, V))
    p = np.array([proposal(x0, xt, denoiser, V) for x0 in items])
    w = np.array([weight(x0, xt) for x0 in items])
    law = np.zeros(len(items))
    for counts in multisets(len(items), k - 1):
        ways = math.factorial(k - 1) / math.prod(math.factorial(c) for c in counts)
        law += ways * np.prod(p ** np.array(counts)) * k * p * w / (w + np.dot(counts, w))
    return dict(zip(items, law, strict=True))


def multisets(num_items, size):
    """All vectors of num_items counts that sum to size."""
    if num_items == 1:
        yield (size,)
        return
    for first in range(size + 1):
        for rest in multisets(num_items - 1, size - first):
            yield (first, *rest)


def importance_chain_law(denoiser, weight, alphas, ks, V, L):
    """The law of the text after the reverse steps, the n-th of which resamples one of ks[n] candidates."""
    law = {(V,) * L: 1.0}
    for (before, after), k in zip(itertools.pairwise(alphas), ks, strict=True):
        new, rho = {}, (after - before) / (1 - before)
        for xt, p in law.items():
            for x0, q in candidate_law(xt, denoiser, weight, k, V).items():
                for xs, r in reveal_from(xt, x0, rho, V):
                    if p * q * r > 0:
                        new[xs] = new.get(xs, 0) + p * q * r
        law = new
    return law


def reveal_first_law(xt, S, denoiser, weight, k, R, V):
    """The exact law of the tokens at S, chosen among k candidates that share R completions of the other masked ones."""
    rest = [i for i in masked(xt, V) if i not in S]
    items, ys = list(itertools.product(range(V), repeat=len(S))), list(itertools.product(range(V), repeat=len(rest)))
    p = np.array([math.prod(denoiser[xt][i, token] for i, token in zip(S, x, strict=True)) for x in items])
    q = np.array([math.prod(denoiser[xt][i, token] for i, token in zip(rest, y, strict=True)) for y in ys])
    w = np.array([[weight(filled(filled(xt, S, x), rest, y), xt) for y in ys] for x in items])
    law = np.zeros(len(items))
    for drawn in multisets(len(ys), R):
        W = w @ np.array(drawn) / R
        for counts in multisets(len(items), k - 1):
            chance = ways(drawn) * np.prod(q ** np.array(drawn)) * ways(counts) * np.prod(p ** np.array(counts))
            law += chance * k * p * W / (W + np.dot(counts, W))
    return {filled(xt, S, x): value for x, value in zip(items, law, strict=True)}


def filled(xt, positions, tokens):
    x = list(xt)
    for i, token in zip(positions, tokens, strict=True):
        x[i] = token
    return tuple(x)


def ways(counts):
    return math.factorial(sum(counts)) / math.prod(math.factorial(c) for c in counts)


def reveal_first_chain_law(denoiser, weight, alphas, k, R, V, L):
    """The law of the text after the reverse steps, each of which resamples what it reveals."""
    return chain_of_steps_law(lambda xt, S: reveal_first_law(xt, S, denoiser, weight, k, R, V), alphas, V, L)


def chain_of_steps_law(step_law, alphas, V, L):
    """The law of the text after the reverse steps; `step_law(xt, S)` is that of a step which reveals S."""
    law = {(V,) * L: 1.0}
    for before, after in itertools.pairwise(alphas):
        new, rho = {}, (after - before) / (1 - before)
        for xt, p in law.items():
            M = masked(xt, V)
            for S in subsets(M):
                chance = p * rho ** len(S) * (1 - rho) ** (len(M) - len(S))
                for xs, q in step_law(xt, S).items():
                    if chance * q > 0:
                        new[xs] = new.get(xs, 0) + chance * q
        law = new
    return law


def successors(xt, V):
    """Every state that a step from xt can lead to."""
    for S in subsets(masked(xt, V)):
        for tokens in itertools.product(range(V), repeat=len(S)):
            yield filled(xt, S, tokens)


def step_items(xt, S, denoiser, weight, V):
    """What a step that reveals S can lead to, with the denoiser's probability and the weight of each."""
    items = [filled(xt, S, tokens) for tokens in itertools.product(range(V), repeat=len(S))]
    p = np.array([math.prod(denoiser[xt][i, xs[i]] for i in S) for xs in items])
    return items, p, np.array([weight(xs, xt) for xs in items])


def step_energy_law(xt, S, denoiser, weight, k, V):
    """The exact law of the next state when one of k candidates for S is resampled; k None is the limit of many."""
    items, p, w = step_items(xt, S, denoiser, weight, V)
    if k is None:
        return dict(zip(items, p * w / np.dot(p, w), strict=True))
    law = np.zeros(len(items))
    for counts in multisets(len(items), k - 1):
        law += ways(counts) * np.prod(p ** np.array(counts)) * k * p * w / (w + np.dot(counts, w))
    return dict(zip(items, law, strict=True))


def expected_step_bound(x0, denoiser, weight, alphas, k, V):
    """Expectation of the bound with one inner draw: -log p_theta(S) - E log(k w_1 / (w_1 + ... + w_k)), enumerated."""
    total = 0.0
    for _, _, xt, S, chance in every_step(x0, alphas, V):
        items, p, w = step_items(xt, S, denoiser, weight, V)
        true = items.index(filled(xt, S, [x0[i] for i in S]))
        value = -math.log(p[true])
        for counts in multisets(len(items), k - 1):
            q = ways(counts) * np.prod(p ** np.array(counts))
            value -= q * math.log(k * w[true] / (w[true] + np.dot(counts, w)))
        total += chance * value
    return total


def one_by_one_law(step_law, V, L):
    """The law of the text when masked positions are revealed one at a time, in an order that is uniform.

    `step_law(xt)` is the law of the completion that a token is read off.
    """
    law = {(V,) * L: 1.0}
    for num_masked in range(L, 0, -1):
        new = {}
        for xt, p in law.items():
            for x0, q in step_law(xt).items():
                for i in masked(xt, V):
                    xs = (*xt[:i], x0[i], *xt[i + 1 :])
                    new[xs] = new.get(xs, 0) + p * q / num_masked
        law = new
    return law


def reveal_from(xt, x0, rho, V):
    M = masked(xt, V)
    for S in subsets(M):
        yield mask_out(x0, set(M) - set(S), V), rho ** len(S) * (1 - rho) ** (len(M) - len(S))


# --- orders of revealing


def remasking_rates(before, after, share, rule):
    """(rho, sigma) of the step from alpha = before to after."""
    most = min(1.0, (1 - after) / before) if before else 0.0
    sigma = min(share, most) if rule == "cap" else share * most
    return (after - (1 - sigma) * before) / (1 - before), sigma


def remasking_chain(joint, alphas, share, rule, V, L, fixed=()):
    """The laws of the state after each step; `joint(xt)` is the law of the clean text, `fixed` has what is known."""
    start = tuple(dict(fixed).get(i, V) for i in range(L))
    laws = [{start: 1.0}]
    for before, after in itertools.pairwise(alphas):
        rho, sigma = remasking_rates(before, after, share, rule)
        new = {}
        for xt, p in laws[-1].items():
            for x0, q in joint(xt).items():
                for flips in itertools.product((False, True), repeat=L):
                    r, xs = p * q, list(xt)
                    for i, flip in enumerate(flips):
                        chance = 0.0 if i in dict(fixed) else rho if xt[i] == V else sigma
                        r *= chance if flip else 1 - chance
                        xs[i] = (x0[i] if xt[i] == V else V) if flip else xt[i]
                    if r > 0:
                        new[tuple(xs)] = new.get(tuple(xs), 0) + r
        laws.append(new)
    return laws


def independent(xt, denoiser, V):
    """The law of the clean text that a factorised denoiser gives."""
    return {x0: proposal(x0, xt, denoiser, V) for x0 in completions(xt, V)}


def posterior(data, xt, V):
    """The true law of the clean text given what is known."""
    fitting = {x: p for x, p in data.items() if all(k in (v, V) for k, v in zip(xt, x, strict=True))}
    return {x: p / sum(fitting.values()) for x, p in fitting.items()}


def masked_data(data, alpha, V, L):
    """The law of a text of which every token is known with probability alpha."""
    law = {}
    for x, p in data.items():
        for M in subsets(range(L)):
            xt = mask_out(x, M, V)
            law[xt] = law.get(xt, 0) + p * (1 - alpha) ** len(M) * alpha ** (L - len(M))
    return {xt: p for xt, p in law.items() if p > 0}


def confident(xt, num, denoiser, V):
    """The `num` masked positions whose likeliest token is likeliest."""
    return tuple(sorted(sorted(masked(xt, V), key=lambda i: -denoiser[xt][i].max())[:num]))


def low_entropy(xt, bound, denoiser, V):
    """Masked positions in order of entropy while the sum but for the largest is within the bound."""
    entropy = {i: -(denoiser[xt][i] * np.log(denoiser[xt][i])).sum() for i in masked(xt, V)}
    chosen = []
    for i in sorted(entropy, key=entropy.get):
        if sum(entropy[j] for j in chosen) > bound:
            break
        chosen.append(i)
    return tuple(sorted(chosen))


def one_way_likelihood(x0, choose, step_law, V, start=None):
    """Probability of a text that can come about in one way: `choose(n, xt)` says what the n-th step reveals."""
    xt, p = start or (V,) * len(x0), 1.0
    n = 0
    while V in xt:
        S = choose(n, xt)
        if S:
            p *= step_law(xt, S, x0)
        xt, n = filled(xt, S, [x0[i] for i in S]), n + 1
    return p


# --- sequential Monte Carlo along positions


def causal_factor(model, xt, carry_over, V):
    """What position i adds to a weight, but for the proposal: p_AR(x^i | x^{<i}), or 1 where it is carried over."""
    return lambda x, i: 1.0 if carry_over and xt[i] != V else model[x[:i]][x[i]]


def smc_law(xt, denoiser, factor, K, block, threshold, V, counts):
    """The exact law of the particle that is taken in the end, and the expectation of the estimate of Z.

    `counts` are the positions with a weight: after the last of them nobody is drawn again.
    """
    runs = [(1.0, 1.0, ((),) * K, (1.0,) * K)]  # probability, estimate so far, texts, weights
    for start in range(0, len(xt), block):
        stop = min(len(xt), start + block)
        for i in range(start, stop):
            runs = [new for run in runs for new in one_more(run, i, xt, denoiser, factor, V)]
        if any(i >= stop for i in counts):
            runs = [new for run in runs for new in drawn_again(run, threshold)]
    law, estimate = {}, 0.0
    for p, z, texts, weights in runs:
        estimate += p * z * sum(weights) / K
        for x, w in zip(texts, weights, strict=True):
            law[x] = law.get(x, 0) + p * w / sum(weights)
    return law, estimate


def one_more(run, i, xt, denoiser, factor, V):
    p, z, texts, weights = run
    law = {token: denoiser[xt][i, token] for token in range(V)} if xt[i] == V else {xt[i]: 1.0}
    for tokens in itertools.product(law, repeat=len(texts)):
        new = [(*x, token) for x, token in zip(texts, tokens, strict=True)]
        w = [w * factor(x, i) / law[x[i]] for x, w in zip(new, weights, strict=True)]
        yield p * math.prod(law[token] for token in tokens), z, tuple(new), tuple(w)


def drawn_again(run, threshold):
    p, z, texts, weights = run
    K, total = len(texts), sum(weights)
    if total**2 / sum(w * w for w in weights) >= threshold * K:
        yield run
        return
    for ancestors in itertools.product(range(K), repeat=K):
        chance = math.prod(weights[a] / total for a in ancestors)
        yield p * chance, z * total / K, tuple(texts[a] for a in ancestors), (1.0,) * K


def lookahead_law(xt, denoiser, background, causal, K, strength, threshold, V, *, carries_over=False):
    """The same for particles that a causal model writes, one position at a time, while the denoiser looks ahead.

    `causal(x, i)` is p_AR of the token at i; what is lent at masked positions is paid at the next known one, or in the
    end.
    """
    L = len(xt)
    runs = [(1.0, 1.0, ((),) * K, (1.0,) * K, (1.0,) * K)]  # probability, estimate, texts, weights, credit
    for i in range(L):
        new_runs = []
        for p, z, texts, weights, credit in runs:
            for p2, texts2, weights2, credit2 in written(i, xt, denoiser, background, causal, strength, V, carries_over,
                                                         texts, weights, credit):  # fmt: skip
                new_runs.append((p * p2, z, texts2, weights2, credit2))
        runs, goes_on = [], any(not carries_over or xt[j] == V for j in range(i + 1, L))
        for p, z, texts, weights, credit in new_runs:
            total = sum(weights)
            if not goes_on or total**2 / sum(w * w for w in weights) >= threshold * K:
                runs.append((p, z, texts, weights, credit))
                continue
            for a in itertools.product(range(K), repeat=K):
                chance = math.prod(weights[j] / total for j in a)
                runs.append(
                    (p * chance, z * total / K, tuple(texts[j] for j in a), (1.0,) * K, tuple(credit[j] for j in a))
                )
    law, estimate = {}, 0.0
    for p, z, texts, weights, credit in runs:
        paid = [w / c for w, c in zip(weights, credit, strict=True)]
        estimate += p * z * sum(paid) / K
        for x, w in zip(texts, paid, strict=True):
            law[x] = law.get(x, 0) + p * w / sum(paid)
    return law, estimate


def written(i, xt, denoiser, background, causal, strength, V, carries_over, texts, weights, credit):
    """Every way in which K particles can go on at position i: (probability, texts, weights, credit)."""
    if xt[i] != V:
        after = tuple((*x, xt[i]) for x in texts)
        factor = [1.0 if carries_over else causal(x, i) for x in after]
        weights = tuple(w * f / c for w, f, c in zip(weights, factor, credit, strict=True))
        yield 1.0, after, weights, (1.0,) * len(texts)
        return
    lent = [(denoiser[xt][i, token] / background[token]) ** strength for token in range(V)]
    scores = [[causal((*x, token), i) * lent[token] for token in range(V)] for x in texts]
    weights = tuple(w * sum(score) for w, score in zip(weights, scores, strict=True))
    for tokens in itertools.product(range(V), repeat=len(texts)):
        chance = math.prod(score[token] / sum(score) for score, token in zip(scores, tokens, strict=True))
        after = tuple((*x, token) for x, token in zip(texts, tokens, strict=True))
        yield chance, after, weights, tuple(c * lent[token] for c, token in zip(credit, tokens, strict=True))


# --- adaptive effort


def adaptive_law(xt, denoiser, weight, groups, target, V):
    """The exact law of Algorithm 1 whose candidates come in `groups` (ends) until their ESS reaches the target."""
    items = list(completions(xt, V))
    p, w = {x: proposal(x, xt, denoiser, V) for x in items}, {x: weight(x, xt) for x in items}
    law, runs = {}, [(1.0, ())]
    for n, stop in enumerate(groups):
        new = []
        for chance, drawn in runs:
            for more in itertools.product(items, repeat=stop - len(drawn)):
                new.append((chance * math.prod(p[x] for x in more), (*drawn, *more)))
        runs = []
        for chance, drawn in new:
            total = sum(w[x] for x in drawn)
            if total**2 / sum(w[x] ** 2 for x in drawn) < target and n + 1 < len(groups):
                runs.append((chance, drawn))
                continue
            for x in drawn:
                law[x] = law.get(x, 0) + chance * w[x] / total
    return law


# --- likelihood of samplers with an energy


def every_step(x0, alphas, V, given=0):
    """(step, rho, xt, S, probability): every step, every mask before it and every set it may reveal."""
    for n, (before, after) in enumerate(itertools.pairwise(alphas)):
        rho = (after - before) / (1 - before)
        for M in subsets(range(given, len(x0))):
            q = (1 - before) ** len(M) * before ** (len(x0) - given - len(M))
            for S in subsets(M):
                p = q * rho ** len(S) * (1 - rho) ** (len(M) - len(S))
                if p > 0:
                    yield n, rho, mask_out(x0, M, V), S, p


def marginal(law, x0, S):
    return sum(p for x, p in law.items() if all(x[i] == x0[i] for i in S))


def nelbo_of_steps(x0, step_law, alphas, V, given=0):
    """Sum over the steps of E[-log p(x0^S | xt)], for step laws that give the joint of all masked tokens."""
    chances = {}
    for n, _, xt, S, p in every_step(x0, alphas, V, given):
        law = step_law(n, xt)
        chances.setdefault((id(law), S), [law, 0])[1] += p
    return sum(p * -math.log(marginal(law, x0, S)) for (_, S), (law, p) in chances.items())


def paper_value(x0, step_law, alphas, V):
    """The paper's formula: rho times the joint over all masked tokens in place of the marginal of what is revealed."""
    total = 0.0
    for n, (before, after) in enumerate(itertools.pairwise(alphas)):
        for M in subsets(range(len(x0))):
            q = (1 - before) ** len(M) * before ** (len(x0) - len(M))
            if q > 0:
                total += q * (after - before) / (1 - before) * -math.log(step_law(n, mask_out(x0, M, V))[x0])
    return total


def chain_nll(x0, step_law, alphas, V, given=0):
    """Exact -log p(x0), or of what follows its first `given` tokens: the sum over all ways to reveal it."""
    states_law = {mask_out(x0, range(given, len(x0)), V): 1.0}
    for n, (before, after) in enumerate(itertools.pairwise(alphas)):
        new, rho = {}, (after - before) / (1 - before)
        for xt, p in states_law.items():
            M, law = masked(xt, V), step_law(n, xt)
            for S in subsets(M):
                xs = mask_out(x0, set(M) - set(S), V)
                q = rho ** len(S) * (1 - rho) ** (len(M) - len(S)) * marginal(law, x0, S)
                new[xs] = new.get(xs, 0) + p * q
        states_law = new
    return -math.log(states_law[x0])


def expected_finite_bound(x0, denoiser, weight, alphas, ks, V, given=0):
    """Expectation of the bound with one inner draw: -log p_theta(S) - E log(k w_1 / (w_1 + ... + w_k)), enumerated."""
    chances = {}
    for n, _, xt, S, p in every_step(x0, alphas, V, given):
        if S:
            chances[xt, S, ks[n]] = chances.get((xt, S, ks[n]), 0) + p
    total = 0.0
    for (xt, S, k), p in chances.items():
        log_p = sum(math.log(denoiser[xt][i, x0[i]]) for i in S)
        total -= p * (log_p + finite_gain(x0, xt, S, denoiser, weight, k, V))
    return total


def finite_gain(x0, xt, S, denoiser, weight, k, V):
    items = list(completions(xt, V))
    p, w = np.array([proposal(x, xt, denoiser, V) for x in items]), np.array([weight(x, xt) for x in items])
    agrees = np.array([all(x[i] == x0[i] for i in S) for x in items])
    inner = p * agrees / (p * agrees).sum()  # y drawn on the rest of M
    total = 0.0
    for counts in multisets(len(items), k - 1):
        ways = math.factorial(k - 1) / math.prod(math.factorial(c) for c in counts)
        total += ways * np.prod(p ** np.array(counts)) * np.dot(inner, np.log(k * w / (w + np.dot(counts, w))))
    return total


def total_variation(a, b):
    return 0.5 * sum(abs(a.get(key, 0) - b.get(key, 0)) for key in set(a) | set(b))


def assert_law(samples, law, size):
    """Chi-square test of samples (any hashables) against probabilities; rare outcomes are pooled."""
    counts = {}
    for sample in samples:
        counts[sample] = counts.get(sample, 0) + 1
    assert set(counts) <= {key for key, p in law.items() if p > 0}, "a sample of probability zero"
    expected = {key: size * p for key, p in law.items()}
    common = [key for key, e in expected.items() if e >= 5]
    observed = [counts.get(key, 0) for key in common]
    wanted = [expected[key] for key in common]
    observed.append(size - sum(observed))
    wanted.append(size - sum(wanted))
    if wanted[-1] < 5:  # too few left over for a cell of their own
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    p_value = stats.chisquare(observed, wanted).pvalue
    assert p_value > FAILURE_RATE, f"chi-square p-value {p_value:.2e}"
