// How the hot loops walk along rows of user arrays and of padded tables. Included by kernels.cpp inside
// its per-target namespace, after lanes.hpp.
#pragma once

// Rows of user arrays are read and written in whole vectors wherever that stays inside the array:
// what a read picks up from the next row lands in padding, and what a write spills over the next row
// is overwritten when that row's turn comes. Only the last rows take the careful path.

// Calls body(V{}, integer K) for groups of at most four vectors that cover n_columns.
template <int K> struct Count { static constexpr int value = K; };
template <class V, class Body> void for_column_groups(int n_columns, Body&& body) {
  constexpr int width = Traits<V>::width;
  for (int first = 0; first < n_columns; first += 4 * width) {
    const int left = (n_columns - first + width - 1) / width;
    if (left >= 4) body(Count<4>{}, first);
    else if (left == 3) body(Count<3>{}, first);
    else if (left == 2) body(Count<2>{}, first);
    else body(Count<1>{}, first);
  }
}
// Every padded row is a whole number of these.
template <class T> using ShortestVector = typename Lanes<T, row_vector_bytes<T>(1)>::type;
// Calls body(V{}) with the vector type that rows of n_columns entries are padded to.
template <class T, class Body> void with_row_vector(int n_columns, Body&& body) {
  const int bytes = row_vector_bytes<T>(n_columns);
  if constexpr (sizeof(T) == 4)
    if (bytes == 8) return body(typename Lanes<T, 8>::type{});
  if (bytes == 16) body(typename Lanes<T, 16>::type{});
  else body(typename Lanes<T, 32>::type{});
}
// The same and the number of those vectors as a Count<>, 0 where there are more than four.
template <class T, class Body> void with_row_length(int n_columns, Body&& body) {
  using Wide = typename Lanes<T, 32>::type;
  if constexpr (sizeof(T) == 4)
    if (row_vector_bytes<T>(n_columns) == 8) return body(typename Lanes<T, 8>::type{}, Count<1>{});
  if (row_vector_bytes<T>(n_columns) == 16) return body(typename Lanes<T, 16>::type{}, Count<1>{});
  switch (padded_columns<T>(n_columns) / Traits<Wide>::width) {
#ifndef CRFIELD_FEW_LENGTHS  // see CMakeLists.txt
    case 1: return body(Wide{}, Count<1>{});
    case 2: return body(Wide{}, Count<2>{});
    case 4: return body(Wide{}, Count<4>{});
#endif
    case 3: return body(Wide{}, Count<3>{});
    default: return body(Wide{}, Count<0>{});
  }
}
