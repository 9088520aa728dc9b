// Where two sequences of token ids agree: at both ends, and between them wherever a run of ids occurs once in each.
const ANCHOR = 12;

// Pieces in order, that together have all of both: [left from, left to, right from, right to, equal].
function aligned(left, right) {
  const most = Math.min(left.length, right.length);
  let head = 0;
  while (head < most && left[head] === right[head]) head++;
  let tail = 0;
  while (tail < most - head && left[left.length - 1 - tail] === right[right.length - 1 - tail]) tail++;
  const [leftEnd, rightEnd] = [left.length - tail, right.length - tail];
  const pieces = [];
  const add = (...piece) => (piece[1] > piece[0] || piece[3] > piece[2]) && pieces.push(piece);
  add(0, head, 0, head, true);
  let [atLeft, atRight] = [head, head];
  for (const [fromLeft, fromRight, size] of commonRuns(left, right, head, leftEnd, rightEnd)) {
    add(atLeft, fromLeft, atRight, fromRight, false);
    [atLeft, atRight] = [fromLeft + size, fromRight + size];
    add(fromLeft, atLeft, fromRight, atRight, true);
  }
  add(atLeft, leftEnd, atRight, rightEnd, false);
  add(leftEnd, left.length, rightEnd, right.length, true);
  return pieces;
}

// [left, right, size] of runs between the ends, in the order of both sequences.
function commonRuns(left, right, from, leftEnd, rightEnd) {
  const here = runsOnce(left, from, leftEnd);
  const there = runsOnce(right, from, rightEnd);
  const anchors = [];
  for (const [key, at] of here) if (at >= 0 && there.get(key) >= 0) anchors.push([at, there.get(key)]);
  const runs = [];
  let [pastLeft, pastRight] = [from, from];
  for (let [atLeft, atRight] of inBothOrders(anchors)) {
    if (atLeft < pastLeft || atRight < pastRight) continue;
    while (atLeft > pastLeft && atRight > pastRight && left[atLeft - 1] === right[atRight - 1]) [atLeft, atRight] = [atLeft - 1, atRight - 1];
    let size = 0;
    while (atLeft + size < leftEnd && atRight + size < rightEnd && left[atLeft + size] === right[atRight + size]) size++;
    runs.push([atLeft, atRight, size]);
    [pastLeft, pastRight] = [atLeft + size, atRight + size];
  }
  return runs;
}

// Where each run of ANCHOR ids begins; -1: it occurs more than once.
function runsOnce(ids, from, to) {
  const places = new Map();
  for (let at = from; at + ANCHOR <= to; at++) {
    const key = ids.subarray(at, at + ANCHOR).join();
    places.set(key, places.has(key) ? -1 : at);
  }
  return places;
}

// The most pairs that rise on both sides; they come rising on the left.
function inBothOrders(pairs) {
  const ends = []; // for each length the pair with the least right end
  const before = new Array(pairs.length).fill(-1);
  pairs.forEach(([, right], i) => {
    let low = 0;
    let high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[ends[middle]][1] < right) low = middle + 1;
      else high = middle;
    }
    before[i] = low ? ends[low - 1] : -1;
    ends[low] = i;
  });
  const chosen = [];
  for (let i = ends.length ? ends[ends.length - 1] : -1; i >= 0; i = before[i]) chosen.push(pairs[i]);
  return chosen.reverse();
}
