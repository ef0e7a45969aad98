//! Nested networks of a `geo`: the longest one that contains an address decides.

use super::conditions::SourcePattern;
use ipnet::IpNet;

/// The networks of a value, if one of them lies within a network of another value that lies within the first: what is
/// excepted from the outer network would be excepted from the inner one as well.
pub(super) fn disjoint_networks(
    group: &[&SourcePattern],
    value: &str,
    known: &[(SourcePattern, &str)],
) -> Option<Vec<IpNet>> {
    let network = |pattern: &SourcePattern| match pattern {
        SourcePattern::Network(network) => Some(network.trunc()),
        _ => None,
    };
    let own: Vec<IpNet> = group.iter().filter_map(|pattern| network(pattern)).collect();
    let others = known.iter().filter(|(_, other)| *other != value);
    let others: Vec<IpNet> = others.filter_map(|(pattern, _)| network(pattern)).collect();
    let is_inside = |inner: &IpNet, outer: &IpNet| inner != outer && outer.contains(inner);
    let is_nested = others.iter().any(|other| {
        own.iter().any(|outer| is_inside(other, outer)) && own.iter().any(|inner| is_inside(inner, other))
    });
    is_nested.then(|| {
        let pieces = own.iter().flat_map(|outer| {
            let inner: Vec<_> = others.iter().filter(|other| is_inside(other, outer)).copied().collect();
            without_networks(*outer, &inner)
        });
        let mut pieces: Vec<IpNet> = pieces.collect();
        pieces.sort();
        pieces.dedup();
        pieces
    })
}

/// The networks that cover `whole` without `parts`.
fn without_networks(whole: IpNet, parts: &[IpNet]) -> Vec<IpNet> {
    let inner: Vec<IpNet> = parts.iter().filter(|part| whole.contains(*part)).copied().collect();
    if inner.is_empty() {
        return vec![whole];
    }
    if inner.iter().any(|part| part.prefix_len() == whole.prefix_len()) {
        return Vec::new();
    }
    let halves = whole.subnets(whole.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without_networks(half, &inner)).collect()
}
