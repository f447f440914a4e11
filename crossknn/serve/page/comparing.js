// What the answers of several strategies to one query say together.

/** The scores of all items that any search of this query has found, on this page. */
export class Known {
  #of = null;
  #scores = new Map();

  /** Learn what a search scored; another query or another index begins anew. */
  learn(result) {
    const of = JSON.stringify([result.query, result.index]);
    if (of !== this.#of) this.#scores.clear();
    this.#of = of;
    for (const { id, score } of result.trace) this.#scores.set(id, score);
  }

  /** The ids of the `k` best. */
  best(k) {
    const order = [...this.#scores].sort(([, one], [, other]) => other - one);
    return order.slice(0, k).map(([id]) => id);
  }
}

/** How many of these ids a search scored. */
export function countFound(result, ids) {
  const scored = idsOf(result);
  return ids.filter((id) => scored.has(id)).length;
}

/** The titles of the other answers that never scored this item. */
export function missedBy(id, others) {
  return others.filter(({ result }) => isWhole(result) && !idsOf(result).has(id)).map((other) => other.title);
}

/** Whether the trace holds all calls; exact search tells only of its hits. */
export const isWhole = ({ trace, calls }) => trace.length === calls;

/** The lowest and the highest of numbers; null where there is none. */
export function rangeOf(numbers) {
  return numbers.length ? [Math.min(...numbers), Math.max(...numbers)] : null;
}

/** What was expected of an item, on the scale of scores; a retriever's own scale is another. */
export function expected({ proposed_by: by, ranks, estimate }) {
  return by in ranks ? null : estimate;
}

const sets = new WeakMap();

function idsOf(result) {
  if (!sets.has(result)) sets.set(result, new Set(result.trace.map(({ id }) => id)));
  return sets.get(result);
}
