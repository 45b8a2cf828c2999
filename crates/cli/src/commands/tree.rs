//! `tree`: where everything comes from, as one tree: base images, what was made from them, what was captured of that, and
//! what was made from the captures. Two lists put together; the server is asked for nothing else.

use std::collections::{BTreeMap, HashSet};

use remuda_client::SandboxFilter;
use remuda_types::wire::{Origin, Sandbox, Snapshot};
use remuda_types::{SandboxState, SnapshotState};
use serde::Serialize;

use super::DONE;
use crate::args::{Global, Tree};
use crate::connection::connect;
use crate::print;

/// One thing and what it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Node {
    /// `image`, `sandbox`, `snapshot`, or `unknown` of what is not on record any more or not seen.
    kind: &'static str,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    state: String,
    /// Whether it has ended.
    ended: bool,
}

pub async fn run(global: &Global, args: &Tree) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let all = SandboxFilter { include_ended: true, ..SandboxFilter::default() };
    let (sandboxes, snapshots) = (client.list_sandboxes(&all).await?, client.snapshots(true).await?);
    let nodes = nodes(&sandboxes, &snapshots, args.all);
    if global.json {
        print::json(&serde_json::json!({ "nodes": nodes }))?;
    } else {
        for line in drawn(&nodes) {
            print::line(print::plain(&line))?;
        }
    }
    Ok(DONE)
}

/// All of it, each behind what it comes from; what has ended only where something living comes from it, or all is wanted.
fn nodes(sandboxes: &[Sandbox], snapshots: &[Snapshot], all: bool) -> Vec<Node> {
    let mut nodes = Vec::new();
    for sandbox in sandboxes {
        let from = match (&sandbox.continues, &sandbox.origin) {
            (Some(before), _) => before.to_string(),
            (None, Origin::Snapshot { snapshot, .. }) => snapshot.to_string(),
            (None, Origin::Image { digest }) => digest.clone(),
        };
        let ended = matches!(sandbox.state, SandboxState::Gone | SandboxState::Failed);
        let (id, state) = (sandbox.id.to_string(), sandbox.state.to_string());
        nodes.push((sandbox.created_at_ms, Node { kind: "sandbox", id, from: Some(from), name: None, state, ended }));
    }
    for snapshot in snapshots {
        let ended = matches!(snapshot.state, SnapshotState::Deleted | SnapshotState::Failed);
        let node = Node {
            kind: "snapshot",
            id: snapshot.id.to_string(),
            from: Some(snapshot.source.to_string()),
            name: snapshot.name.clone(),
            state: format!("{} {}", snapshot.mode, snapshot.state),
            ended,
        };
        nodes.push((snapshot.created_at_ms, node));
    }
    nodes.sort_by(|(a, x), (b, y)| (a, &x.id).cmp(&(b, &y.id)));
    let mut nodes: Vec<Node> = nodes.into_iter().map(|(_, node)| node).collect();
    let known: HashSet<String> = nodes.iter().map(|node| node.id.clone()).collect();
    let images: HashSet<&String> = sandboxes
        .iter()
        .filter_map(|sandbox| match &sandbox.origin {
            Origin::Image { digest } => Some(digest),
            Origin::Snapshot { .. } => None,
        })
        .collect();
    let mut roots: Vec<String> = nodes.iter().filter_map(|node| node.from.clone()).collect();
    roots.retain(|from| !known.contains(from));
    roots.sort();
    roots.dedup();
    let roots = roots.into_iter().map(|id| {
        let (kind, state) = if images.contains(&id) { ("image", "base image") } else { ("unknown", "not on record") };
        Node { kind, id, from: None, name: None, state: state.to_owned(), ended: true }
    });
    nodes.splice(0..0, roots.collect::<Vec<_>>());
    if all {
        return nodes;
    }
    let from: BTreeMap<&String, &String> =
        nodes.iter().filter_map(|node| Some((&node.id, node.from.as_ref()?))).collect();
    let mut needed: HashSet<String> = HashSet::new();
    for living in nodes.iter().filter(|node| !node.ended) {
        let mut next = Some(&living.id);
        while let Some(id) = next.filter(|id| needed.insert((*id).clone())) {
            next = from.get(id).copied();
        }
    }
    nodes.retain(|node| needed.contains(&node.id));
    nodes
}

/// The tree as lines.
fn drawn(nodes: &[Node]) -> Vec<String> {
    let mut children: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        if let Some(from) = &node.from {
            children.entry(from).or_default().push(node);
        }
    }
    let mut lines = Vec::new();
    // With a stack of its own: how deep it is is a matter of how often somebody forked.
    let mut ways: Vec<(&Node, String, String)> =
        nodes.iter().rev().filter(|node| node.from.is_none()).map(|n| (n, String::new(), String::new())).collect();
    while let Some((node, first, rest)) = ways.pop() {
        let name = node.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        let id = if node.kind == "image" { node.id.chars().take(12).collect() } else { node.id.clone() };
        lines.push(format!("{first}{id}{name}  {}", node.state));
        let below = children.get(node.id.as_str()).map(Vec::as_slice).unwrap_or_default();
        for (n, child) in below.iter().enumerate().rev() {
            let last = n + 1 == below.len();
            let (branch, trunk) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            ways.push((child, format!("{rest}{branch}"), format!("{rest}{trunk}")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: &'static str, id: &str, from: Option<&str>, ended: bool) -> Node {
        let (id, from) = (id.to_owned(), from.map(str::to_owned));
        Node { kind, id, from, name: None, state: "s".into(), ended }
    }

    #[test]
    fn each_stands_below_what_it_comes_from() {
        let nodes = [
            node("image", "0123456789abcdef", None, true),
            node("sandbox", "a", Some("0123456789abcdef"), false),
            node("snapshot", "b", Some("a"), false),
            node("sandbox", "c", Some("b"), false),
            node("snapshot", "d", Some("a"), false),
        ];
        let lines = drawn(&nodes);
        assert_eq!(lines, ["0123456789ab  s", "└─ a  s", "   ├─ b  s", "   │  └─ c  s", "   └─ d  s"]);
    }
}
