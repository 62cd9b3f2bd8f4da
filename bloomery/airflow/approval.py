"""A person decides in the UI whether a candidate becomes the champion."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator


class ReleaseApproval(ApprovalOperator):
    """Asks for approval, showing what the decision rests on; the demo's config may answer in a person's
    place.

    Args:
        item: the item of the candidate, as decided.
    """

    template_fields = (*ApprovalOperator.template_fields, "item")

    def __init__(self, *, item: Any, **arguments: Any) -> None:
        arguments["execution_timeout"] = None  # of the DAG's defaults: a person may take longer
        super().__init__(subject="Release a candidate?", **arguments)
        self.item = item

    def execute(self, context: Any) -> Any:
        """Answers at once by the config, or waits for a person."""
        from bloomery.airflow.work import approval_request

        request = approval_request(self.item)
        if request.auto:
            self.log.info("Approved by the config (release.auto_approve)")
            return {"approver": "release.auto_approve"}
        self.subject, self.body = request.subject, request.body
        self.assigned_users = [{"id": user, "name": user} for user in request.approvers] or None
        return super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Returns who approved; a rejection skips the promotion."""
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"] or {}
        return {"approver": user.get("name") or user.get("id") or "unknown"}
