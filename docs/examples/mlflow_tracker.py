"""MLflow as a tracker: `run.trackers=[mlflow_tracker:Mlflow]`."""

import mlflow


class Mlflow:
    def on_run_start(self, run, event):
        mlflow.set_experiment("overlap-rl")
        known = mlflow.search_runs(filter_string=f"tags.folder = '{run.path}'", output_format="list")
        mlflow.start_run(
            known[0].info.run_id if known else None, run_name=run.path.name, tags={"folder": str(run.path)}
        )

    def on_step(self, run, event):
        mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in event.row.items()}, step=event.step)

    on_evaluate = on_step

    def on_run_end(self, run, event):
        mlflow.end_run("FINISHED" if event.exit == "finished" else "FAILED")
