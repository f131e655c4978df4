// Groups of items that lie together, the largest first.

import * as api from "./api.js";
import { card, grid, message, skeletons } from "./cards.js";
import { count, make, show } from "./dom.js";

export async function drawClusters(state, { view, status, signal }) {
  show(view, skeletons(12));
  status.textContent = "Looking for clusters…";
  const { clusters } = await api.clusters(state.index, signal);
  status.textContent = clusters.length ? `${count(clusters.length, "cluster")}, the largest first` : "";
  if (clusters.length === 0) return show(view, message("No clusters", "No items lie together in this index."));
  show(
    view,
    clusters.map((cluster, number) => {
      const labels = cluster.labels.map((one) => `${one.label} ${one.count}`).join(" · ");
      return make(
        "section",
        { class: "cluster" },
        make(
          "div",
          { class: "title" },
          make("h2", {}, count(cluster.size, "item")),
          make("span", { class: "quiet small" }, labels),
        ),
        grid(cluster.items.map((item) => card(item, state.index)), `Cluster ${number + 1}`, "strip"),
      );
    }),
  );
}
